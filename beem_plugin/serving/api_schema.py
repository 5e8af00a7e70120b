"""The schema of requests and answers in OpenAPI, from the archive's columns and labels."""

from collections.abc import Sequence
from typing import Any

from beem_plugin.serving.requests import BATCH_KEY

ERRORS = {
    400: "The body is not JSON.",
    408: "The body did not arrive in time.",
    413: "The body, or the number of inputs, is over the limit.",
    422: "An input lacks a column, or is not text.",
    503: "The queue is full, or the server is stopping; try again.",
    504: "No answer within the time limit.",
}
TEXTS = ("A film that is worth every minute.", "Dull, long and badly acted.")


def request_schema(names: Sequence[str]) -> dict[str, Any]:
    """The body of `/predict`: one input by the reader's columns, or a list of them."""
    one = {
        "type": "object",
        "title": "one input",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
    }
    short: dict[str, Any] = {"type": "string"}
    if len(names) > 1:
        short = {"type": "array", "items": short, "minItems": len(names), "maxItems": len(names)}
    items = {"type": "array", "items": {"oneOf": [one, short]}, "minItems": 1}
    batch = {"type": "object", "title": "a batch", "properties": {BATCH_KEY: items}, "required": [BATCH_KEY]}
    rows = [list(TEXTS[: len(names)]), list(reversed(TEXTS[: len(names)]))] if len(names) > 1 else list(TEXTS)
    examples = {
        "one": {"summary": "One input", "value": dict(zip(names, TEXTS))},
        "batch": {"summary": "A batch", "value": {BATCH_KEY: rows}},
    }
    return {
        "required": True,
        "content": {"application/json": {"schema": {"oneOf": [one, batch]}, "examples": examples}},
    }


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
    return {"type": "object", "properties": properties, "required": [name for name in properties if name != "score"]}


def responses(prediction: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The answers of `/predict` by HTTP status."""
    batch = {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}
    error = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    found: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The prediction, or `predictions` in the order of the inputs.",
            "content": {"application/json": {"schema": {"oneOf": [prediction, batch]}}},
        }
    }
    for status, description in ERRORS.items():
        found[status] = {"description": description, "content": {"application/json": {"schema": error}}}
    return found
