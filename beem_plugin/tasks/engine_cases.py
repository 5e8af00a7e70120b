"""The cases of a benchmark of engines: with exits, at full depth, with exits that no sample takes, and transformers."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.data.collate import ragged
from beem_plugin.data.instance import Instance, select
from beem_plugin.execution.engine import Engine
from beem_plugin.execution.metering.baselines import FullDepth, NeverExits
from beem_plugin.execution.metering.computed import Batches, checked_decisions, lengths_in_order
from beem_plugin.execution.metering.macs import count_macs, exit_costs
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.tasks.task import Case, evaluation_loader, read_instances

PLAIN = "transformers"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

ONE_BY_ONE = ("single",)  # engines that process samples one by one: timed at batch size 1 only

WHOLE_WINDOWS = ("depth_pools",)
"""Engines that return the results of many batches at once: the latency of one batch is not defined."""


def batches_by_size(
    archive: Archive, source: str | Sequence[Instance], max_instances: int | None
) -> Callable[[int], Batches]:
    """Makes batches of any size, outside of the timed part."""
    found = read_instances(archive, source) if isinstance(source, str) else source
    instances = found[:max_instances]
    pad_token_id = archive.validation_dataset_reader.tokenizer.pad_token_id

    def make(size: int) -> Batches:
        order = evaluation_loader(archive, instances, size).batches
        parts = [(torch.tensor(rows), ragged(select(instances, rows), pad_token_id)) for rows in order]
        return [replace(part, index=rows) for rows, part in parts]

    return make


def cases_by_size(
    network: SteppedNetwork,
    policy: ExitPolicy,
    make_batches: Callable[[int], Batches],
    batch_sizes: Sequence[int],
    engines: Sequence[str],
) -> Iterator[tuple[int, list[Case]]]:
    """The `engine_cases` of each batch size; engines that take samples one by one have batch size 1."""
    for size in sorted({*batch_sizes, *(1 for name in engines if name in ONE_BY_ONE)}):
        chosen = [name for name in engines if (size == 1 if name in ONE_BY_ONE else size in batch_sizes)]
        if chosen:
            yield size, engine_cases(network, policy, make_batches(size), chosen)


def engine_cases(network: SteppedNetwork, policy: ExitPolicy, batches: Batches, engines: Sequence[str]) -> list[Case]:
    """
    transformers, and each of the `engines` at full depth, with unused exits, and with exits. The network is on its
    device, in its precision. Each case has an engine of its own, with its own captured graphs.
    """
    samples = {"samples": sum(map(len, batches))}
    padded = [batch.padded(always_mask=True) for batch in batches]
    cases = [Case(PLAIN, "full_depth", functools.partial(run_plain, network, padded), samples.copy)]
    for name in engines:
        decisions, computed = checked_decisions(name, network, policy, batches)
        counts = {**count(network, decisions.exits, batches, policy), "computed_layer_speedup": computed}
        runs = {
            "full_depth": (FullDepth(network), Final()),
            "no_sample_exits": (network, NeverExits(policy)),
            "exits": (network, policy),
        }
        for kind, (part, rule) in runs.items():
            run = functools.partial(Engine.from_params({"type": name}).run, part, rule, batches)
            found = counts if kind == "exits" else samples
            cases.append(Case(name, kind, run, found.copy, reference=name, has_latency=name not in WHOLE_WINDOWS))
    return cases


@torch.inference_mode()
def run_plain(network: SteppedNetwork, batches: Sequence[dict[str, Tensor]]) -> Iterator[Tensor]:
    """The backbone's transformers model as users call it, and the last exit's head."""
    device = device_of(network)
    head = getattr(network, "exit_logits", None) or (lambda number, state: network.exit_signals(number, state).logits)
    for batch in batches:
        inputs = {name: batch[name].to(device) for name in INPUTS if name in batch}
        hidden = network.backbone.transformer_model(**inputs).last_hidden_state
        yield head(network.num_exits, BackboneState(hidden, inputs["attention_mask"].bool())).argmax(-1).cpu()


def count(network: SteppedNetwork, exits: Tensor, batches: Batches, policy: ExitPolicy | None = None) -> dict[str, Any]:
    """`samples`, `mean_tokens`, and the depth of the exits that were taken, with `mac_speedup`."""
    lengths = lengths_in_order(batches)
    depth: dict[str, Any] = depth_summary(exits, network.exit_layers, exit_costs(network, policy))
    if hasattr(network, "depth_of_tokens"):
        depth |= network.depth_of_tokens(tokens_of(batches))
    found = {name: depth[name] for name in ("layer_speedup", "average_layer", "exit_histogram")}
    found["mac_speedup"] = count_macs(network).speedup(exits, lengths)
    return {"samples": len(exits), "mean_tokens": float(lengths.double().mean()), **found}


def tokens_of(batches: Batches) -> Iterator[list[int]]:
    """Each sample's token ids."""
    for batch in batches:
        yield from (row["input_ids"] for row in batch.rows())
