"""One stage of a training in several stages: its config block, its objective and data."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.recipes import with_keys_of
from beem_plugin.common.registry import FromParams, Lazy
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer
from beem_plugin.training.trainer import TrainingError

logger = logging.getLogger(__name__)

GIVEN = ("model", "serialization_dir", "validation_data_loader")
"""Arguments of a trainer that are no config keys."""

LoaderMaker = Callable[[str | None, Lazy[DataLoader] | None], Any]


@dataclass
class Requirement(FromParams):
    """
    A condition that a stage must meet before the next one starts, such as the quality of a teacher.

    # Parameters

    metric : `str`
        A validation metric without a sign, of the stage's best epoch.
    at_least, at_most : `float`, optional (default = `None`)
        At least one of the two.
    on_failure : `str`, optional (default = `"error"`)
        `"error"` ends the training and archives the stage's best weights; `"warn"` continues.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    on_failure: str = "error"

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ConfigurationError("at_least: missing, allowed: a number here or in at_most")
        check_choice("on_failure", self.on_failure, ("error", "warn"))

    def check(self, metrics: dict[str, float], stage: "Stage") -> None:
        """Ends the training, or warns, if these validation metrics miss the requirement."""
        value, limits = metrics[self.metric], []
        # Negated comparisons, so that NaN fails.
        if self.at_least is not None and not value >= self.at_least:
            limits.append(f"at least {self.at_least}")
        if self.at_most is not None and not value <= self.at_most:
            limits.append(f"at most {self.at_most}")
        if not limits:
            return
        message = (
            f'stage "{stage.name}": the best validation {self.metric} is {value:.4g}, required: {limits[0]} '
            f"({stage.path}.require)"
        )
        if self.on_failure == "error":
            raise TrainingError(message)
        logger.warning(message)


class Stage(FromParams):
    """
    A block of the trainer "staged": any key of the trainer "gradient_descent" but `cuda_device`, and those below.

    # Parameters

    name : `str`
        Letters, digits and underscores; for the stage's folder and its metrics.
    objective : `Objective`, optional (default = the model's own)
        For training and validation in this stage.
    train_data_path : `str`, optional (default = that of the config)
        Other training data for this stage, read by the same reader. Labels may be missing if the objective of the stage
        needs none.
    data_loader : `DataLoader`, optional (default = that of the config)
        For another batch size in this stage, for example.
    require : `Requirement`, optional (default = `None`)
        A condition at the end of the stage.
    callbacks : `list[TrainerCallback]`, optional (default = `None`)
        Of this stage alone; they write to the stage's folder.
    """

    @with_keys_of(GradientDescentTrainer.__init__, without=(*GIVEN, "cuda_device"))
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

    def prepare(
        self,
        number: int,
        serialization_dir: Path,
        model: Model,
        data_loader: Any,
        make_training_loader: LoaderMaker | None,
        tokenizer: Any,
    ) -> None:
        """Builds the stage's loader and objective."""
        self.path = f"trainer.stages.{number}"
        self.directory = serialization_dir / f"stage_{number + 1}_{self.name}"
        self.loader = data_loader
        self.own_objective: Objective | None = None
        if self.train_data_path is not None or self.data_loader is not None:
            if make_training_loader is None:
                raise ConfigurationError(f"{self.path}: train_data_path and data_loader need a config's reader")
            with self.errors():
                self.loader = make_training_loader(self.train_data_path, self.data_loader)
        if self.objective is not None:
            if not isinstance(getattr(model, "objective", None), Objective):
                raise ConfigurationError(
                    f"{self.path}.objective: found an objective, allowed: none, since a {type(model).__name__} has no "
                    "`objective` that it could replace"
                )
            self.own_objective = self.objective.construct()
            with self.errors():
                self.own_objective.start_training(model.vocab, tokenizer)

    @contextmanager
    def objective_in(self, model: Any) -> Iterator[None]:
        """Replaces the model's objective by the stage's within the block."""
        if self.own_objective is None:
            yield
            return
        device = next(model.parameters()).device
        previous, model.objective = model.objective, self.own_objective.to(device)
        try:
            yield
        finally:
            model.objective = previous
            model.to(next(model.parameters()).device)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors that name a key of the trainer get the path of the stage's block instead."""
        try:
            yield
        except ConfigurationError as error:
            message = str(error)
            if self.path in message:
                raise
            found = re.match(r"(trainer\.|model\.)?(\w+)[:.]", message)
            if found is not None and found[2] in {"objective", "train_data_path", "require", *self.options}:
                message = f"{self.path}.{message.removeprefix(found[1] or '')}"
            elif found is not None and found[1]:
                message = f'{message} (stage "{self.name}")'
            else:
                message = f"{self.path}: {message}"
            raise ConfigurationError(message) from error
