"""Config values of simple types, and errors that name the full path of a key."""

import enum
import inspect
import json
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tango.common.exceptions import ConfigurationError as TangoConfigurationError

from beem_plugin.common.errors import ConfigurationError, nearest_first

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


#: The value of `inspect` for a missing annotation or default.
EMPTY: Any = inspect.Parameter.empty

NoneType = type(None)

_SHOWN = 60


#: Simple types: their name, its plural, and which values they take. Of numbers, only `bool` takes true and false.
_SCALARS: dict[Any, tuple[str, str, Callable[[Any], bool]]] = {
    # yaml keeps 3.0 a float, which jsonnet converts to 3
    int: ("an integer", "integers", lambda one: isinstance(one, int) or type(one) is float and one.is_integer()),
    float: ("a number", "numbers", lambda value: isinstance(value, (int, float))),
    bool: ("true or false", "true/false values", lambda value: isinstance(value, bool)),
    str: ("a string", "strings", lambda value: isinstance(value, (str, Path))),
    Path: ("a path", "paths", lambda value: isinstance(value, (str, Path))),
    os.PathLike: ("a path", "paths", lambda value: isinstance(value, (str, Path))),
    NoneType: ("null", "nulls", lambda value: value is None),
}
_KINDS = {dict: "a block", list: "a list", int: "a number", float: "a number", bool: "true/false"}


class Mismatch(LocatedError):
    """A key does not take a value of this type. Its `path` is not kept when it is raised again with another message."""

    path: str | None = None

    @classmethod
    def at(cls, path: str, value: Any, expected: str) -> "Mismatch":
        """`expected` describes what is allowed."""
        hint = _hint(value, expected)
        error = cls(f"{path or 'the config'}: found {describe_value(value)}, expected {expected}{hint}")
        error.path = path
        return error


def describe_value(value: Any) -> str:
    """The shortened value and its type, in the terms of a config."""
    if value is None:
        return "null"
    if type(value) in _KINDS:
        text, kind = json.dumps(value, default=repr), _KINDS[type(value)]
    else:
        text, kind = repr(value), "a string" if isinstance(value, str) else f"a {type(value).__name__}"
    return f"{text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'} ({kind})"


def describe_type(annotation: Any) -> str:
    """An annotation in the terms of a config: `float | list[float]` is "a number or a list of numbers"."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation][0]
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(member) for member in args)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    kind = origin or annotation
    if isinstance(kind, type):
        if issubclass(kind, dict) or kind.__name__ in ("Mapping", "MutableMapping"):
            return "a block {...}"
        if issubclass(kind, (list, tuple, set, frozenset)) or kind.__name__ in ("Sequence", "Iterable", "Collection"):
            members = [member for member in args if member is not Ellipsis]
            if len(members) != 1:
                return "a list"
            simple = _SCALARS.get(members[0])
            return f"a list of {simple[1]}" if simple else f"a list, each item {describe_type(members[0])}"
        if kind.__name__ == "Lazy" and args:
            return describe_type(args[0])
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        return f"{article} {kind.__name__} block {{...}}"
    return str(annotation)


def plan_scalar(annotation: Any, value: Any, path: str) -> Callable[[], Any] | None:
    """A function that converts `value`; `None` if `annotation` is not a simple type. Raises `Mismatch`."""
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if not any(type(choice) is type(value) and choice == value for choice in choices):
            names = nearest_first(repr(value), [repr(choice) for choice in choices])
            raise Mismatch.at(path, value, " or ".join(names))
        return lambda: value
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            if value in (member, member.value, member.name):
                return lambda: member
        raise Mismatch.at(path, value, " or ".join(nearest_first(value, [member.value for member in annotation])))
    if annotation not in _SCALARS:
        return None
    if not _SCALARS[annotation][2](value) or (isinstance(value, bool) and annotation is not bool):
        raise Mismatch.at(path, value, describe_type(annotation))
    return lambda: Path(value) if annotation is os.PathLike else annotation(value)


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated`, `NewType`, type aliases and type variables."""
    while True:
        if get_origin(annotation) is typing.Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        elif annotation is None:
            return NoneType
        elif annotation is EMPTY or annotation is object or isinstance(annotation, str):
            return Any
        else:
            return annotation


def _hint(value: Any, expected: str) -> str:
    if not isinstance(value, str):
        return ""
    if value in ("true", "false") and _SCALARS[bool][0] in expected:
        return f" ({value} is written without quotes)"
    if _SCALARS[float][0] in expected or _SCALARS[int][0] in expected:
        try:
            float(value)
        except ValueError:
            return ""
        return " (a number is written without quotes, in yaml with a dot; of std.extVar it is made by std.parseJson)"
    return ""
