"""The errors that are meant for the person who wrote a config or typed a command. Imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BeemError(Exception):
    """An error whose message is the whole story: the command line prints it without a traceback."""


class ConfigurationError(BeemError):
    """Something in a config, an override, a policy file or a command-line argument is wrong."""


class DataError(BeemError):
    """An input file is missing, malformed or inconsistent; the message names the file and the line."""


class NotCalibratedError(BeemError):
    """An exit policy was asked to decide before it had thresholds or weights."""


def nearest_first(found: object, allowed: Iterable[object]) -> list[str]:
    """`allowed` as strings, the names most like `found` first, so that a typo's fix is the first word read."""
    names = [str(name) for name in allowed]
    close = difflib.get_close_matches(str(found), names, n=3, cutoff=0.5)
    return close + sorted(name for name in names if name not in close)


def not_allowed(what: str, found: object, allowed: Iterable[object]) -> str:
    """One line: what was wrong, what was found, what is allowed (nearest name first)."""
    return f"{what}: found {found!r}, allowed: {', '.join(nearest_first(found, allowed))}"
