"""Errors that name the full path of a key in a config."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tango.common.exceptions import ConfigurationError as TangoConfigurationError

from beem_plugin.common.errors import ConfigurationError

_OF_LIBRARIES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, AssertionError)


class LocatedError(ConfigurationError):
    """An error whose message begins with the full path of its key."""


def at(path: str, message: str) -> LocatedError:
    return LocatedError(f"{path}: {message}")


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@contextmanager
def errors_at(path: str, name: str, arguments: Collection[str]) -> Iterator[None]:
    """Prepends the path of their block to errors of the constructor of `name`, which has these arguments."""
    try:
        yield
    except LocatedError:
        raise
    except (ConfigurationError, TangoConfigurationError) as error:
        message = str(error)
        if not path or message.startswith(path):
            raise LocatedError(message) from error
        names_its_key = message.split(":")[0].split(".")[0].strip("`") in arguments
        raise LocatedError(f"{path}{'.' if names_its_key else ': '}{message}") from error
    except _OF_LIBRARIES as error:
        # The traceback is printed with ALLENNLP_DEBUG=1.
        if not path or type(error).__name__ == "OutOfMemoryError":
            raise
        text = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        raise at(path, f"{name} cannot be built: {f'{kind}: {text}' if text else kind}") from error
