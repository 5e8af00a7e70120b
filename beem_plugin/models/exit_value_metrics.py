"""Tells how well the values of every exit go with the labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.known_labels import known_labels
from beem_plugin.common.metrics import METRICS


class ExitValueMetrics:
    """
    `ExitMetrics` of a regression: collects the values that every exit gives, and turns them into the task's metrics,
    those of the last exit under their own names and those of every exit under names that begin with `exit_<number>_`.

    # Parameters

    metric : `str`
        A name of `beem_plugin.common.metrics`, one for values.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.values: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Counts in `(batch, exits, 1)` logits of the samples with a known `(batch,)` label."""
        known = known_labels(label)
        self.values.append(logits.detach().squeeze(-1)[known].float().cpu())
        self.labels.append(label[known].float().cpu())

    def compute(self, reset: bool) -> dict[str, float]:
        """Empty without samples."""
        if not self.labels:
            return {}
        values, labels = torch.cat(self.values), torch.cat(self.labels)
        self.values, self.labels = ([], []) if reset else ([values], [labels])
        if not len(labels):
            return {}
        # In double precision, as where a trace of the same values is judged.
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
