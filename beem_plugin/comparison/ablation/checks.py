"""What of a variant no training looks at: it is built once before any training, so that a typo costs none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.archived_config import as_policy_config
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.common.values import describe_value
from beem_plugin.comparison.ablation.judging import judged_source
from beem_plugin.comparison.ablation.trainings import calibration_block, is_calibration
from beem_plugin.comparison.ablation.variants import Variant
from beem_plugin.execution import Engine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.training.callbacks.calibrate_exits import held_out
from beem_plugin.training.callbacks.callback import TrainerCallback

SOME_LAYERS = (1, 2, 3)
"""A network, as its own is not known before it is built; whatever a rule says against just these counts for nothing."""


def check_variants(variants: Sequence[Variant]) -> None:
    """Raises a `ConfigurationError` that names variant and key unless all can be judged once they are trained."""
    for variant in variants:
        try:
            check_config(variant.config)
        except ConfigurationError as error:
            raise ConfigurationError(f"variant {variant.name!r}: {error}") from error


def check_config(config: dict[str, Any]) -> None:
    """Builds exit policy, engine and calibration, which need no data, and looks for the data they are going to need."""
    model = config.get("model")
    model = model if isinstance(model, dict) else {}  # its training says what is wrong
    policy = build_policy(model.get("exit_policy"))
    if model.get("engine") is not None:
        Engine.from_params(block("model.engine", model["engine"]))
    trainer = config.get("trainer")
    for index, callback in enumerate((trainer.get("callbacks") if isinstance(trainer, dict) else None) or []):
        if is_calibration(callback):
            TrainerCallback.from_params(block(f"trainer.callbacks.{index}", callback), serialization_dir=Path())
    judged_source(config)
    if needs_calibration(policy) and not calibration_block(config).get("data"):
        held_out(config.get("train_data_path"))


def build_policy(config: Any) -> ExitPolicy:
    """The config's policy, unbound; without one, nobody leaves early."""
    given = as_policy_config(config)
    return ExitPolicy.from_params(block("model.exit_policy", given if given is not None else {"type": "final"}))


def block(key: str, value: Any) -> Params:
    """A block at `key`, or the name that is short for it, as errors are to name it."""
    value = {"type": value} if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise ConfigurationError(f"{key}: found {describe_value(value)}, allowed: a block {{...}} or a registered name")
    return Params(dict(value), history=f"{key}.")


def needs_calibration(policy: ExitPolicy) -> bool:
    """Whether the policy has open numbers; `False` where that cannot be told without the network."""
    try:
        policy.bind(SOME_LAYERS, 2)
    except ConfigurationError:
        return False
    return not policy.is_calibrated
