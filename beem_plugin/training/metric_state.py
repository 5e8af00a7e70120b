"""A model's running metrics as data, for checkpoints and for several processes."""

from __future__ import annotations

from typing import Any

from beem_plugin.models.model import Model


def get_metric_state(model: Model) -> dict[str, Any] | None:
    """
    What `model.metric_state()` returns, `None` for a model without this method.

    A state is a dictionary that can be added up: lists are joined, numbers and tensors summed, dictionaries merged.
    """
    method = getattr(model, "metric_state", None)
    return None if method is None else method()


def set_metric_state(model: Model, state: dict[str, Any]) -> None:
    """Makes `state` the model's running metrics."""
    getattr(model, "load_metric_state")(state)  # noqa: B009 - not every model has it


def merge_metric_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a model that saw what all of these saw."""
    merged = states[0]
    for state in states[1:]:
        merged = _add(merged, state)
    return merged


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {**a, **b, **{name: _add(a[name], b[name]) for name in a if name in b}}
    return a + b
