"""Regression: one value a text, from every exit."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from beem_plugin.common.metrics import METRICS
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.tasks.classification import Classification
from beem_plugin.tasks.task import Task


@Task.register("regression")
class Regression(Classification):
    """
    As classification, with values in the place of labels and no classes.

    Registered as a `Task` with name "regression".
    """

    gold = "gold_value"

    def measure(self, model: MultiExitModel, labels: Tensor, predictions: Tensor) -> dict[str, Any]:
        return METRICS[model.metric](labels.numpy(), predictions.numpy())
