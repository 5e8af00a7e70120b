"""The body of a request, with limits on its size and errors that say what is allowed, and its schema in OpenAPI."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request

from beem_plugin.common.errors import DataError
from beem_plugin.common.strict_json import JSON_DECODER, json_problem
from beem_plugin.data.table_file import TableRow
from beem_plugin.predictors.inputs import row_of

BATCH_KEY = "inputs"


class RequestError(Exception):
    """An HTTP status, and one line for the client."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


async def read_body(request: Request, max_bytes: int, timeout: float) -> bytes:
    """The body, which is not read further once it is too large or too late."""
    too_large = RequestError(
        413, f"body: found more than {max_bytes} bytes, allowed: up to {max_bytes} (--max-body-mb)"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise too_large
            parts.append(part)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(read(), timeout)
    except asyncio.TimeoutError:
        raise RequestError(408, f"body: not complete after {timeout:g} s (--timeout-s)") from None
    except ClientDisconnect:
        raise RequestError(400, "body: the client disconnected before its end") from None


def parse_body(
    body: bytes, names: Sequence[str], max_inputs: int, types: tuple[type, ...] = (str,)
) -> tuple[list[TableRow], bool]:
    """The inputs, and whether they are a batch: `{"inputs": [...]}` rather than one object with the columns `names`."""
    try:
        value: Any = JSON_DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise RequestError(400, "body: not UTF-8 text") from None
    except (json.JSONDecodeError, ValueError, RecursionError) as error:
        raise RequestError(400, f"body: not valid JSON: {json_problem(error)}") from None
    if not isinstance(value, Mapping):
        raise RequestError(422, f"body: found {kind_of(value)}, allowed: {allowed(names)}")
    inputs = value.get(BATCH_KEY)
    if not isinstance(inputs, list):
        if BATCH_KEY in value and BATCH_KEY not in names:
            raise RequestError(422, f"{BATCH_KEY}: found {kind_of(inputs)}, allowed: a list of inputs")
        return [TableRow("", dict(value))], False
    if not inputs:
        raise RequestError(422, f"{BATCH_KEY}: found an empty list, allowed: one input or more")
    if len(inputs) > max_inputs:
        raise RequestError(
            413, f"{BATCH_KEY}: found {len(inputs)}, allowed: up to {max_inputs} a request (--max-batch)"
        )
    rows = []
    for number, item in enumerate(inputs):
        try:
            rows.append(TableRow(f"{BATCH_KEY}[{number}]", row_of(item, names, types)))
        except DataError as error:
            raise RequestError(422, f"{BATCH_KEY}[{number}]: {error}") from None
    return rows, True


def kind_of(value: Any) -> str:
    """What JSON calls the value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def allowed(names: Sequence[str]) -> str:
    return f'an object with {", ".join(names)}, or {{"{BATCH_KEY}": [...]}}'


ERRORS = {
    400: "The body is not JSON.",
    408: "The body did not arrive in time.",
    413: "The body, or the number of inputs, is over the limit.",
    422: "An input lacks a column, or is not text.",
    503: "The queue is full, or the server is stopping; try again.",
    504: "No answer within the time limit.",
}
TEXTS = ("A film that is worth every minute.", "Dull, long and badly acted.")


def object_schema(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def json_body(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema, **more}}}


def request_schema(names: Sequence[str]) -> dict[str, Any]:
    """The body of `/predict`: one input by the reader's columns, or a list of them."""
    one = {"title": "one input", **object_schema({name: {"type": "string"} for name in names})}
    short: dict[str, Any] = {"type": "string"}
    if len(names) > 1:
        short = {"type": "array", "items": short, "minItems": len(names), "maxItems": len(names)}
    items = {"type": "array", "items": {"oneOf": [one, short]}, "minItems": 1}
    batch = {"title": "a batch", **object_schema({BATCH_KEY: items})}
    rows = [list(TEXTS[: len(names)]), list(reversed(TEXTS[: len(names)]))] if len(names) > 1 else list(TEXTS)
    examples = {
        "one": {"summary": "One input", "value": dict(zip(names, TEXTS))},
        "batch": {"summary": "A batch", "value": {BATCH_KEY: rows}},
    }
    return {"required": True, **json_body({"oneOf": [one, batch]}, examples=examples)}


def prediction_schema(answer: str, labels: Sequence[str], exit_layers: Sequence[int]) -> dict[str, Any]:
    properties: dict[str, Any] = {answer: {"type": "number"}}
    if answer == "tags":
        properties = {"tags": {"type": "array", "items": {"type": "string", "enum": list(labels)}}}
    elif labels:
        probabilities = {"type": "object", "properties": {name: {"type": "number"} for name in labels}}
        properties = {answer: {"type": "string", "enum": list(labels)}, "probabilities": probabilities}
    properties["exit"] = {"type": "integer", "minimum": 1, "maximum": len(exit_layers)}
    properties["layer"] = {"type": "integer", "enum": list(exit_layers), "description": "layers computed"}
    properties["score"] = {
        "type": ["number", "null"],
        "description": "what the policy compared with its threshold at the exit; absent if it has no score",
    }
    return object_schema(properties, "score")


def responses(answer: str, labels: Sequence[str], exit_layers: Sequence[int]) -> dict[int | str, dict[str, Any]]:
    """The answers of `/predict` by HTTP status."""
    prediction = prediction_schema(answer, labels, exit_layers)
    batch = object_schema({"predictions": {"type": "array", "items": prediction}})
    error = json_body(object_schema({"detail": {"type": "string"}}))
    about = "The prediction, or `predictions` in the order of the inputs."
    answers: dict[int | str, dict[str, Any]] = {
        200: {"description": about, **json_body({"oneOf": [prediction, batch]})}
    }
    return answers | {status: {"description": description, **error} for status, description in ERRORS.items()}
