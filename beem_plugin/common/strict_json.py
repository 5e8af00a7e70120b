"""Strict JSON with one-line errors."""

import json
from pathlib import Path
from typing import Any

import orjson

from beem_plugin.common.errors import DataError


def json_line(obj: Any) -> str:
    """`obj` as one line of strict JSON, newline included. NaN and infinity, which JSON does not have, become null."""
    try:
        return orjson.dumps(obj, option=orjson.OPT_APPEND_NEWLINE).decode()
    except TypeError:  # integers beyond 64 bits and lone surrogates, which an input may contain
        return json.dumps(obj, allow_nan=False) + "\n"


def parse_json(text: str, place: str) -> Any:
    """The value of strict JSON, each key once, or a `DataError` that begins with `place`; NaN becomes `None`."""
    try:
        return JSON_DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON: {json_problem(error)}") from None


def json_problem(error: Exception) -> str:
    """A short description of a parser's error."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"{error.msg} at {line}column {error.colno}"
    return str(error).split(";")[0]


def read_json(path: Path, name: str | None = None) -> Any:
    """The value in a JSON file; errors name it `name`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{name or path}: not UTF-8 text") from None
    except FileNotFoundError:
        raise DataError(f"{name or path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{name or path}: is a directory") from None
    return parse_json(text, str(name or path))


def read_json_object(path: Path, name: str | None = None) -> dict[str, Any]:
    """`read_json` of a file that must hold an object."""
    content = read_json(path, name)
    if not isinstance(content, dict):
        found = "null" if content is None else type(content).__name__
        raise DataError(f"{name or path}: found {found}, allowed: a JSON object")
    return content


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values; json itself drops the first of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} occurs twice in an object")
    return found


def _constant(name: str) -> None:
    if name != "NaN":
        raise ValueError(f"found {name}")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"found the number {digits[:20]}, which is too large")
    return value


JSON_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_finite, object_pairs_hook=each_key_once)
