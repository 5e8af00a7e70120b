"""Config values of simple types: which annotations they match, and their description in error messages."""

from __future__ import annotations

import enum
import json
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from beem_plugin.common.config_errors import LocatedError
from beem_plugin.common.errors import nearest_first
from beem_plugin.common.signatures import EMPTY

NoneType = type(None)

_NAMES: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true/false values"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
    os.PathLike: ("a path", "paths"),
    NoneType: ("null", "nulls"),
}
_SHOWN = 60


class Mismatch(LocatedError):
    """The key at `path` does not take a value of this type; `expected` describes what is allowed."""

    def __init__(self, path: str, value: Any, expected: str) -> None:
        self.path = path
        super().__init__(
            f"{path or 'the config'}: found {describe_value(value)}, expected {expected}{_hint(value, expected)}"
        )


def describe_value(value: Any) -> str:
    """The shortened value and its type, in the terms of a config."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{json.dumps(value)} (true/false)"
    if isinstance(value, str):
        return f"{_shortened(repr(value))} (a string)"
    kind = "a block" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a number"
    if isinstance(value, (dict, list, int, float)):
        return f"{_shortened(json.dumps(value, default=repr))} ({kind})"
    return f"{_shortened(repr(value))} (a {type(value).__name__})"


def describe_type(annotation: Any) -> str:
    """An annotation in the terms of a config: `float | list[float]` is "a number or a list of numbers"."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation][0]
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(member) for member in args)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    kind = origin or annotation
    if isinstance(kind, type):
        if issubclass(kind, dict) or kind.__name__ in ("Mapping", "MutableMapping"):
            return "a block {...}"
        if issubclass(kind, (list, tuple, set, frozenset)) or kind.__name__ in ("Sequence", "Iterable", "Collection"):
            return _describe_list([member for member in args if member is not Ellipsis])
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
            raise Mismatch(path, value, " or ".join(names))
        return lambda: value
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            if value in (member, member.value, member.name):
                return lambda: member
        raise Mismatch(path, value, " or ".join(nearest_first(value, [member.value for member in annotation])))
    if annotation not in _NAMES:
        return None
    if not _fits(annotation, value):
        raise Mismatch(path, value, describe_type(annotation))
    if annotation is os.PathLike:
        return lambda: Path(value)
    return lambda: annotation(value)


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


def _fits(annotation: Any, value: Any) -> bool:
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:  # yaml keeps 3.0 a float where jsonnet makes it 3
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, (str, Path))


def _describe_list(members: list[Any]) -> str:
    if len(members) != 1:
        return "a list"
    if members[0] in _NAMES:
        return f"a list of {_NAMES[members[0]][1]}"
    return f"a list, each item {describe_type(members[0])}"


def _hint(value: Any, expected: str) -> str:
    if not isinstance(value, str):
        return ""
    if value in ("true", "false") and _NAMES[bool][0] in expected:
        return f" ({value} is written without quotes)"
    if _NAMES[float][0] in expected or _NAMES[int][0] in expected:
        try:
            float(value)
        except ValueError:
            return ""
        return " (a number is written without quotes, in yaml with a dot; of std.extVar it is made by std.parseJson)"
    return ""


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
