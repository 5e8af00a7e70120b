"""One stage of a training in several stages, as the config describes it."""

from __future__ import annotations

import re
from typing import Any

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import FromParams, Lazy
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.objectives import Objective
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer
from beem_plugin.training.trainer_keys import with_keys_of

GIVEN = ("model", "serialization_dir", "validation_data_loader")
"""What a trainer's constructor takes from the program."""


class Requirement(FromParams):
    """
    What a stage must have reached before the next one starts: a student is not to learn from a teacher that failed.

    # Parameters

    metric : `str`
        A validation metric without a sign, taken from the stage's best epoch.
    at_least, at_most : `float`, optional (default = `None`)
        One of the two, or both.
    on_failure : `str`, optional (default = `"error"`)
        `"error"` ends the training, with the stage's best weights archived; `"warn"` goes on.
    """

    def __init__(
        self,
        metric: str,
        at_least: float | None = None,
        at_most: float | None = None,
        on_failure: str = "error",
    ) -> None:
        if at_least is None and at_most is None:
            raise ConfigurationError("at_least: missing, allowed: a number here or in at_most")
        if on_failure not in ("error", "warn"):
            raise ConfigurationError(not_allowed("on_failure", on_failure, ["error", "warn"]))
        self.metric = metric
        self.at_least = at_least
        self.at_most = at_most
        self.on_failure = on_failure

    def failure(self, metrics: dict[str, float]) -> str | None:
        """What is wrong with these validation metrics, `None` if nothing is."""
        value = metrics[self.metric]
        # Written so that a value that is no number fails.
        if self.at_least is not None and not value >= self.at_least:
            return f"the best validation {self.metric} is {value:.4g}, required: at least {self.at_least}"
        if self.at_most is not None and not value <= self.at_most:
            return f"the best validation {self.metric} is {value:.4g}, required: at most {self.at_most}"
        return None


class Stage(FromParams):
    """
    A block of the trainer "staged": any key of the trainer "gradient_descent" but `cuda_device`, and those below.

    # Parameters

    name : `str`
        Letters, digits and underscores; for the stage's folder and its metrics.
    objective : `Objective`, optional (default = the model's own)
        What the model is trained and validated with in this stage.
    train_data_path : `str`, optional (default = that of the config)
        Other training data for this stage, read by the same reader. Labels may be missing if the objective of the stage
        needs none.
    data_loader : `DataLoader`, optional (default = that of the config)
        For another batch size in this stage, for example.
    require : `Requirement`, optional (default = `None`)
        What the stage must have reached at its end.
    callbacks : `list[TrainerCallback]`, optional (default = `None`)
        Of this stage alone; what they write goes to the stage's folder.
    """

    @with_keys_of(GradientDescentTrainer.from_partial_objects, without=(*GIVEN, "cuda_device"))
    def __init__(
        self,
        name: str,
        objective: Lazy[Objective] | None = None,
        train_data_path: str | None = None,
        data_loader: Lazy[DataLoader] | None = None,
        require: Requirement | None = None,
        **options: Any,
    ) -> None:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise ConfigurationError(f"name: found {name!r}, allowed: letters, digits and underscores")
        self.name = name
        self.objective = objective
        self.train_data_path = train_data_path
        self.data_loader = data_loader
        self.require = require
        self.options = options
