"""Plain networks: the first layers of an encoder with a classifier; their traces and mixtures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beem_plugin.archival import load_archive
from beem_plugin.backbones.families import read_depth
from beem_plugin.calibration.curves import Curve
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import known_labels
from beem_plugin.common.values import describe_value
from beem_plugin.comparison.operating_curve import Family, TraceJudge, TraceResult
from beem_plugin.comparison.result import PolicyResult
from beem_plugin.evaluation.trace import trace_archive

KEPT = ("backbone", "pooler", "share_pooler", "dropout")
"""Keys of an encoder with exits that mean the same in one without."""
EXIT_CALLBACKS = ("calibrate_exits", "cross_level")
NAME = "plain networks"


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
    """
    The config with the archive `teacher` as that of its objective, which half of the loss is from where none was named.
    """
    own = config["model"]["objective"]
    objective = own if own.get("type") == "distilled" else {"type": "distilled", "objective": own}
    return {**config, "model": {**config["model"], "objective": {**objective, "teacher": teacher}}}


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


def plain_of_each(paths: Sequence[str], traces: int) -> list[list[str]]:
    """The files of `--plain` that belong to each trace: of each network one for each trace, in the same order."""
    if len(paths) % traces:
        raise ConfigurationError(
            f"--plain: found {len(paths)} files for {traces} traces, allowed: of each network one for each trace, in "
            "the same order"
        )
    return [list(paths[number::traces]) for number in range(traces)]


def with_plain(found: TraceResult, path: str, plain: Sequence[str], metric: str) -> str | None:
    """
    Adds plain networks to the result of a trace, as a family whose curve is that of mixing two of them. If the deepest
    is as deep as the network with exits, all speeds become relative to it, and its name is given as the reference.
    """
    traces = load_plain(plain, found.trace, path)
    depth = max(found.trace.exit_layers[-1], *traces)
    results = []
    for layers, trace in traces.items():
        name = f"plain network of {layers} layers"
        family, _ = TraceJudge(trace, metrics=[metric]).single({"type": "final"}, name)
        results.append(scaled(family.results[0], depth / layers))
    found.scale = depth / found.trace.exit_layers[-1]
    for one in found.families:
        one.results = [scaled(result, found.scale) for result in one.results]
        if one.curve is not None:
            one.curve = one.curve.scaled(found.scale)
    curve = Curve(
        np.array([result.metrics[metric] for result in results]),
        np.array([result.layer_speedup for result in results]),
        [result.name for result in results],
    )
    found.families.append(Family(NAME, results, family.policy, curve if len(results) > 1 else None))
    return results[0].name if results[0].layer_speedup == 1 else None


def load_plain(paths: Sequence[str], like: ExitTrace, like_path: str) -> dict[int, ExitTrace]:
    """By depth, the deepest first: stored traces, or archives on the data of the trace `like`; of the same samples."""
    traces = []
    for path in paths:
        if Path(path).suffix == ".npz":
            traces.append(ExitTrace.load(path))
        elif like.source:
            traces.append(trace_archive(load_archive(path), like.source))
        else:
            raise ConfigurationError(
                f"--plain: {path}: {like_path} does not name its data; allowed: a trace of that network"
            )
    check_same_samples([like, *traces], [like_path, *paths])
    found: dict[int, ExitTrace] = {}
    for trace, path in sorted(zip(traces, paths, strict=True), key=lambda pair: -pair[0].exit_layers[-1]):
        layers = trace.exit_layers[-1]
        if layers in found:
            raise ConfigurationError(f"--plain: {path}: found {layers} layers a second time, allowed: each depth once")
        found[layers] = trace
    return found


def scaled(result: PolicyResult, factor: float) -> PolicyResult:
    """The result with speeds relative to a network that is `factor` times as deep."""
    speedup, intervals = factor * result.layer_speedup, dict(result.intervals)
    if "layer_speedup" in intervals:
        low, high = intervals["layer_speedup"]
        intervals["layer_speedup"] = factor * low, factor * high
    depth = {**result.depth, "layer_speedup": speedup, "layers_saved": 1 - 1 / speedup}
    return replace(result, depth=depth, intervals=intervals)


def check_same_samples(traces: Sequence[ExitTrace], names: Sequence[str]) -> None:
    """Raises a `ConfigurationError` unless the traces are of the same samples in the same order."""
    first = traces[0]
    for trace, name in zip(traces[1:], names[1:], strict=True):
        same = len(trace) == len(first) and trace.num_labels == first.num_labels
        same = same and torch.equal(trace.labels, first.labels)
        if not same or (None not in (trace.ids, first.ids) and trace.ids != first.ids):
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


def mixture(costs: Sequence[float] | np.ndarray, right: Callable[[int], np.ndarray], cost: float) -> np.ndarray:
    """
    `(samples,)` the probability of being right of networks or settings that share the samples at random such that the
    mean cost is `cost`: the two nearest of the rising `costs` take turns. Beyond both ends the cheapest or the dearest
    alone. `right` gives `(samples,)` of the network at a place of `costs`.
    """
    above = int(np.searchsorted(costs, cost))
    if above in (0, len(costs)):
        return right(min(above, len(costs) - 1))
    share = (cost - costs[above - 1]) / (costs[above] - costs[above - 1])
    return np.asarray((1 - share) * right(above - 1) + share * right(above))
