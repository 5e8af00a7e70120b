"""Counts how often each exit is right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.metrics import METRICS


class ExitMetrics:
    """
    Collects the labels that every exit gives, and turns them into the task's metric for the last exit and an accuracy
    for every exit. Keeps one byte a sample and exit (labels beyond 127 take two), so that metrics which are no mean
    over samples, such as Matthews correlation, are exact.

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
        """Counts in `(batch, exits, labels)` logits of the samples with a known `(batch,)` label."""
        known = label >= 0
        self.predictions.append(logits.detach().argmax(-1)[known].to("cpu", self.dtype))
        self.labels.append(label[known].to("cpu", self.dtype))

    def compute(self, reset: bool) -> dict[str, float]:
        """Empty without samples."""
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
