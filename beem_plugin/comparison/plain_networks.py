"""Plain networks: the first layers of an encoder with one classifier at their end, trained for themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from beem_plugin.backbones.families import read_depth
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.known_labels import known_labels
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
        trainer["callbacks"] = [one for one in trainer["callbacks"] if name_of(one) not in EXIT_CALLBACKS]
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


def name_of(block: Any) -> Any:
    """The registered name of a block, or of a name that is short for one."""
    return block.get("type") if isinstance(block, dict) else block


def check_same_samples(traces: Sequence[ExitTrace], names: Sequence[str]) -> None:
    """Raises a `ConfigurationError` unless the traces are of the same samples in the same order."""
    first = traces[0]
    for trace, name in zip(traces[1:], names[1:], strict=True):
        same = len(trace) == len(first) and trace.num_labels == first.num_labels
        if (
            not same
            or not torch.equal(trace.labels, first.labels)
            or None not in (ids := (trace.ids, first.ids))
            and (ids[0] != ids[1])
        ):
            raise ConfigurationError(
                f"{name}: found other samples ({len(trace)}) than in {names[0]} ({len(first)}), allowed: the same "
                "samples in the same order"
            )


def cascade_trace(traces: Sequence[ExitTrace]) -> ExitTrace:
    """
    A cascade of whole networks (CascadeBERT, Li et al. 2021) as a trace: one exit a network, small to large. A sample
    that goes on has cost all networks so far, so that `exit_costs` are sums of depths. Any rule with a score decides;
    the published one is `max_probability` with one threshold.
    """
    depths = [trace.exit_layers[-1] for trace in traces]
    if len(depths) < 2 or depths != sorted(set(depths)):
        raise ConfigurationError(f"cascade: found networks of {depths} layers, allowed: two or more, of rising depth")
    check_same_samples(traces, [f"network of {depth} layers" for depth in depths])
    meta = {key: value for key, value in traces[-1].meta.items() if key not in ("exit_layers", "exit_costs")}
    meta |= {"exit_layers": depths, "exit_costs": np.cumsum(depths).tolist()}
    logits = torch.cat([trace.logits[:, -1:] for trace in traces], 1)
    return ExitTrace(logits, traces[-1].labels, traces[-1].ids, meta=meta)


def right_of_last_exit(trace: ExitTrace) -> np.ndarray:
    """`(labelled samples,)` float: 1 where the last exit is right."""
    known = known_labels(trace.labels)
    return (trace.predictions[:, -1] == trace.labels)[known].double().numpy()


def mixture(costs: Sequence[float], right: Sequence[np.ndarray], cost: float) -> np.ndarray:
    """
    `(samples,)` the probability of being right of networks that share the samples at random such that the mean cost is
    `cost`: the two nearest take turns. Beyond both ends the cheapest or the dearest alone.

    # Parameters

    costs : `Sequence[float]`
        `(networks,)` rising.
    right : `Sequence[ndarray]`
        `(samples,)` of each network.
    """
    above = int(np.searchsorted(costs, cost))
    if above in (0, len(costs)):
        return right[min(above, len(costs) - 1)]
    share = (cost - costs[above - 1]) / (costs[above] - costs[above - 1])
    return (1 - share) * right[above - 1] + share * right[above]
