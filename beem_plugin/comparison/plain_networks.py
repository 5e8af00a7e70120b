"""Plain networks: the first layers of an encoder with one classifier at their end, trained for themselves."""

from __future__ import annotations

import json
from typing import Any

from beem_plugin.backbones.families import read_depth
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.values import describe_value

KEPT = ("backbone", "pooler", "share_pooler", "dropout")
"""Keys of an encoder with exits that mean the same in one without."""
EXIT_CALLBACKS = ("calibrate_exits", "cross_level")


def plain_config(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """
    The config of the first `layers` layers as a network of their own, as `methods.reduced` gives it, with the data and
    the trainer of `config`. What only exits have (branches, forks, signals, stages of training) is left out; the rate
    of heads is kept.
    """
    found = json.loads(json.dumps(config))
    encoder = encoder_of(found)
    found["model"]["encoder"] = {key: encoder[key] for key in KEPT if key in encoder} | {
        "type": "multi_exit",
        "backbone": {**encoder["backbone"], "num_layers": layers},
        "exit_layers": [layers],
    }
    found["model"] |= {"objective": {"type": "final_exit"}, "exit_policy": {"type": "final"}}
    trainer = found.get("trainer") or {}
    if "stages" in trainer:
        first = trainer.pop("stages")[0]
        found["trainer"] = trainer = {**trainer, "type": "gradient_descent"}
        for key in ("num_epochs", "validation_metric"):
            if trainer.get(key) is None and first.get(key) is not None:
                trainer[key] = first[key]
    if trainer.get("callbacks"):
        names = ((one, one.get("type") if isinstance(one, dict) else one) for one in trainer["callbacks"])
        trainer["callbacks"] = [one for one, name in names if name not in EXIT_CALLBACKS]
    return found


def distilled_config(config: dict[str, Any], teacher: str) -> dict[str, Any]:
    """A plain network's config with half of its loss from the probabilities of the archive `teacher`."""
    objective = {"type": "distilled", "teacher": teacher, "objective": config["model"]["objective"]}
    return {**config, "model": {**config["model"], "objective": objective}}


def full_depth(config: dict[str, Any]) -> int:
    """The layers of the config's encoder before it is cut."""
    backbone = encoder_of(config)["backbone"]
    return read_depth(backbone.get("model_name"), backbone.get("config"))


def encoder_of(config: dict[str, Any]) -> dict[str, Any]:
    """The encoder's block, or a `ConfigurationError`: captioners have none that can be cut like this."""
    model = config.get("model")
    encoder = model.get("encoder") if isinstance(model, dict) else None
    if not isinstance(encoder, dict) or not isinstance(encoder.get("backbone"), dict):
        raise ConfigurationError(
            f"model.encoder.backbone: found {describe_value(encoder)} in model.encoder, allowed: a block with a "
            "backbone whose layers can be cut, as in multi_exit_classifier"
        )
    return encoder
