"""Accuracy of each exit, and the metric of the task at the last exit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.metrics import METRICS


class ExitMetrics:
    """
    Collects the predicted labels of all exits; computes the task's metric for the last exit and the accuracy of every
    exit. All predictions are stored (one byte per sample and exit; two with more than 127 labels), because metrics such
    as Matthews correlation are not means over samples.

    # Parameters

    metric : `str`
        A name of `beem_plugin.common.metrics`.
    num_labels : `int`
    """

    def __init__(self, metric: str, num_labels: int) -> None:
        self.metric = metric
        self.dtype = torch.int8 if num_labels <= 127 else torch.int16
        self.predictions: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds `(batch, exits, labels)` logits of the samples with a known `(batch,)` label."""
        known = label >= 0
        self.predictions.append(logits.detach().argmax(-1)[known].to("cpu", self.dtype))
        self.labels.append(label[known].to("cpu", self.dtype))

    def compute(self, reset: bool) -> dict[str, float]:
        """The metrics by name; empty if there are no samples."""
        if not self.labels:
            return {}
        predictions, labels = torch.cat(self.predictions), torch.cat(self.labels)
        if reset:
            self.predictions, self.labels = [], []
        else:
            self.predictions, self.labels = [predictions], [labels]
        if not len(labels):
            return {}
        values = METRICS[self.metric](labels.numpy(), predictions[:, -1].numpy())
        accuracy = (predictions == labels.unsqueeze(1)).double().mean(0)
        return {**values, **{f"exit_{number}_accuracy": float(value) for number, value in enumerate(accuracy, 1)}}

    def state_dict(self) -> dict[str, Any]:
        return {"predictions": list(self.predictions), "labels": list(self.labels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.predictions, self.labels = list(state["predictions"]), list(state["labels"])
