"""Correlation of the values of each exit with the labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.known_labels import known_labels
from beem_plugin.common.metrics import METRICS


class ExitValueMetrics:
    """
    `ExitMetrics` for regression: collects the predicted values of all exits and computes the task's metrics. Metrics of
    the last exit have their plain names; those of each exit have the prefix `exit_<number>_`.

    # Parameters

    metric : `str`
        A regression metric of `beem_plugin.common.metrics`.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.values: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds `(batch, exits, 1)` values of the samples with a known `(batch,)` label."""
        known = known_labels(label)
        self.values.append(logits.detach().squeeze(-1)[known].float().cpu())
        self.labels.append(label[known].float().cpu())

    def compute(self, reset: bool) -> dict[str, float]:
        """The metrics by name; empty if there are no samples."""
        if not self.labels:
            return {}
        values, labels = torch.cat(self.values), torch.cat(self.labels)
        self.values, self.labels = ([], []) if reset else ([values], [labels])
        if not len(labels):
            return {}
        # Double precision, as in the metrics of a trace of the same values.
        columns, gold = values.double().numpy().T, labels.double().numpy()
        found = [METRICS[self.metric](gold, column) for column in columns]
        exits = {
            f"exit_{number}_{name}": value
            for number, each in enumerate(found, 1)
            for name, value in each.items()
            if name != self.metric
        }
        return {**found[-1], **exits}

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values), "labels": list(self.labels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.labels = list(state["values"]), list(state["labels"])
