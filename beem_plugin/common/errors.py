"""Errors that a user can correct: in a config, an input file or a command. Imports nothing heavy."""

import difflib
import math
from collections.abc import Iterable
from numbers import Real

_SHOWN = 80
"""Maximum number of characters of a value in a message."""


class BeemError(Exception):
    """An error whose message is complete: the command line prints it without a traceback."""


class ConfigurationError(BeemError):
    """Something in a config, an override, a policy file or a command-line argument is wrong."""


class DataError(BeemError):
    """An input file is missing, malformed or inconsistent; the message names the file and the line."""


class NotCalibratedError(BeemError):
    """An exit policy has no thresholds or weights yet."""


def nearest_first(found: object, allowed: Iterable[object]) -> list[str]:
    """`allowed` as strings, the names closest to `found` first."""
    names = [str(name) for name in allowed]
    close = difflib.get_close_matches(str(found)[:_SHOWN], names, n=3, cutoff=0.5)
    return close + sorted(name for name in names if name not in close)


def not_allowed(what: str, found: object, allowed: Iterable[object]) -> str:
    """One line: the key, what was found, what is allowed (nearest name first)."""
    shown = repr(found)
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 4]} ..."
    return f"{what}: found {shown}, allowed: {', '.join(nearest_first(found, allowed))}"


def first_line(error: BaseException) -> str:
    """The first line of a library's error, or its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_at_least(least: int, **options: int | None) -> None:
    """Raises a `ConfigurationError` for an option that is given and smaller."""
    for name, value in options.items():
        check_number(name, value, least)


def check_choice(key: str, value: object, allowed: Iterable[object]) -> None:
    """Raises a `ConfigurationError` that names the key unless the value is one of those allowed."""
    if value not in allowed:
        raise ConfigurationError(not_allowed(key, value, allowed))


def is_number(value: float | None) -> bool:
    """Whether a config's value is a finite number: true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(abs(value) < math.inf)


def check_number(
    key: str,
    value: float | None,
    low: float = 0,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raises a `ConfigurationError` unless the value is a finite number from `low` to `high`, or `None`, not given."""
    if value is None:
        return
    inside = is_number(value) and (low < value if open_low else low <= value)
    if inside and (value < high if open_high else value <= high):
        return
    allowed = f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
    if open_low or open_high:
        allowed = f"{'above' if open_low else 'from'} {low:g}"
        allowed += "" if high == math.inf else f" {'and below' if open_high else 'to'} {high:g}"
    raise ConfigurationError(f"{key}: found {value}, allowed: {allowed}")


def check_least(args: object, least: int, *names: str) -> None:
    """Raises a `ConfigurationError` for an argument of a command line that is given and below `least`."""
    check_at_least(least, **{f"--{name.replace('_', '-')}": getattr(args, name) for name in names})
