"""Regression: one value a text, from every exit."""

from collections.abc import Sequence
from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.tasks.classification import Classification
from beem_plugin.tasks.task import Task


@Task.register("regression")
class Regression(Classification):
    """
    As classification, with values in the place of labels and no classes.

    Registered as a `Task` with name "regression".
    """

    answer = "value"

    def records(
        self, model: MultiExitModel, decisions: ExitDecisions, fields: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return [{"value": value} for value in decisions.predictions.tolist()]
