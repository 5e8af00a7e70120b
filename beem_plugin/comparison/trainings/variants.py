"""A variant of a config: which part of it is trained, how it is calibrated, on which data it is judged."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.archived_config import as_policy_config
from beem_plugin.common.construct import check
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.common.values import describe_value
from beem_plugin.execution import Engine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.training.callbacks.calibrate_exits import held_out
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.train_model import TrainModel

BASE = "base"
CALIBRATION = "calibrate_exits"
SOME_LAYERS = (1, 2, 3)
"""A network, as its own is not known before it is built; an error of a policy with these layers counts for nothing."""


@dataclass(frozen=True)
class Variant:
    """A whole config under a unique name."""

    name: str
    config: dict[str, Any]
    family: str  # its name in the file: that of all settings of a grid
    setting: dict[str, Any] = field(default_factory=dict)  # the values that a grid gave, by dotted key
    is_candidate: bool = False  # whether only the best of its family is kept
    plain: int | None = None  # of a plain network, its layers
    teacher: str | None = None  # the name of the variant that it is distilled from, see `distilled_config`

    @property
    def policy(self) -> Any:
        """The block of the exit policy; without one, no sample exits early."""
        given = as_policy_config(block(self.config, "model").get("exit_policy"))
        return {"type": "final"} if given is None else given

    @property
    def callbacks(self) -> list[Any]:
        return block(self.config, "trainer").get("callbacks") or []

    @property
    def calibration(self) -> dict[str, Any]:
        """The `calibrate_exits` callback; empty if there is none."""
        found: Any = next(filter(is_calibration, self.callbacks), {})
        return dict(found) if isinstance(found, dict) else {"type": found}

    @property
    def batch_size(self) -> int:
        """Samples of a batch in which traces are made."""
        return int(self.calibration.get("batch_size", 64))

    def calibration_source(self) -> str:
        """The data that open numbers of the policy are fitted on."""
        return self.calibration.get("data") or held_out(self.config.get("train_data_path"))

    def test_sets(self) -> dict[str, str]:
        """The test data by name if the config evaluates on them, a single set under the name ""."""
        test = self.config.get("test_data_path") if self.config.get("evaluate_on_test") else None
        return test if isinstance(test, dict) else {"": str(test)} if test else {}

    def judged_source(self) -> str:
        """The test data if the config evaluates on them (several have commas between), or else the validation data."""
        if tests := self.test_sets():
            return ",".join(tests.values())
        if self.config.get("validation_data_path"):
            return str(self.config["validation_data_path"])
        raise ConfigurationError(
            "found neither test_data_path with evaluate_on_test nor validation_data_path: no data to judge on"
        )

    def fitted_sources(self) -> list[str]:
        """What open numbers of the policy are fitted on, and the data for all but thresholds where these are others."""
        own = self.calibration.get("parameters_data")
        return [self.calibration_source(), *([own] if own else [])]

    def sources(self) -> list[tuple[str, bool]]:
        """The data that a judgement takes, and whether the training data's reader reads them."""
        fitted = [] if self.open_policy() is None else self.fitted_sources()
        judged = [self.judged_source(), *self.test_sets().values()]
        if self.is_candidate and self.config.get("validation_data_path"):
            judged.append(str(self.config["validation_data_path"]))
        return list(dict.fromkeys([*((source, True) for source in fitted), *((source, False) for source in judged)]))

    @property
    def trained_part(self) -> dict[str, Any]:
        """The config without what training does not depend on; its archive exits at the last exit."""
        part = copy.deepcopy(self.config)
        part.pop("evaluation", None)
        for key in ("exit_policy", "engine"):
            block(part, "model").pop(key, None)
        trainer = block(part, "trainer")
        if trainer.get("callbacks") is not None:
            trainer["callbacks"] = [callback for callback in trainer["callbacks"] if not is_calibration(callback)]
            if not trainer["callbacks"]:
                del trainer["callbacks"]
        return part

    def open_policy(self) -> ExitPolicy | None:
        """The policy if it has open numbers, as far as can be told without the network."""
        policy = ExitPolicy.from_params(params("model.exit_policy", self.policy))
        try:
            policy.bind(SOME_LAYERS, 2)
        except ConfigurationError:
            return None
        return None if policy.is_calibrated else policy

    def check(self) -> None:
        """Builds what needs no data (policy, engine, calibration), looks for their data, and checks all keys."""
        policy = self.open_policy()
        engine = block(self.config, "model").get("engine")
        if engine is not None:
            Engine.from_params(params("model.engine", engine))
        for index, callback in enumerate(self.callbacks):
            if is_calibration(callback):
                found = params(f"trainer.callbacks.{index}", callback)
                TrainerCallback.from_params(found, serialization_dir=Path())
        self.judged_source()
        if policy is not None:
            policy.check_can_be_fitted()
            self.calibration_source()
        check(TrainModel, self.config, partial=True)


def check_variants(variants: Sequence[Variant]) -> None:
    """Raises a `ConfigurationError` that names variant and key unless all can be judged once they are trained."""
    for variant in variants:
        try:
            variant.check()
        except ConfigurationError as error:
            raise ConfigurationError(f"variant {variant.name!r}: {error}") from error


def block(config: dict[str, Any], key: str) -> dict[str, Any]:
    """The block at `key`; empty where there is none: its training says what is wrong."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def params(key: str, value: Any) -> Params:
    """A block at `key`, or the name that is short for it, as errors are to name it."""
    value = as_policy_config(value)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{key}: found {describe_value(value)}, allowed: a block {{...}} or a registered name")
    return Params(dict(value), history=f"{key}.")


def is_calibration(callback: Any) -> bool:
    return (callback.get("type") if isinstance(callback, dict) else callback) == CALIBRATION
