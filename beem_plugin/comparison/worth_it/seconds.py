"""Seconds of plain networks, cascades and exits on this machine, sample by sample and as a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beem_plugin.archival import Archive
from beem_plugin.comparison.worth_it.networks import Plain
from beem_plugin.comparison.worth_it.options import Option
from beem_plugin.comparison.worth_it.verdicts import Costs
from beem_plugin.data.collate import ragged_parts
from beem_plugin.data.instance import Instance
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import build_file_engine
from beem_plugin.execution.metering.timing import measure
from beem_plugin.execution.single import Single
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy

WAYS = {"single": 200, "file": 2000}  # ways of running, and how many samples are timed: one by one, and as a file
FILE_BATCH = 4096
Part = tuple[SteppedNetwork, ExitPolicy, list[Instance]]


def measure_options(
    options: Sequence[Option],
    exits: Archive,
    plain: Mapping[Plain, Archive],
    instances: Sequence[Instance],
    repeats: int = 3,
    time_budget: float = 120,
) -> dict[str, Costs]:
    """
    Times the first seed's networks in turns, on the samples that the options' `right` is about. Distilled networks are
    as fast as plain ones, and not timed. After `time_budget` seconds of each way no further repeat begins.
    """
    config = exits.config.as_dict(quiet=True)
    pad_token_id = exits.validation_dataset_reader.tokenizer.pad_token_id
    timed = [one for one in options if one.kind != "plain" or not one.members[0].distilled]
    found = {}
    for way, limit in WAYS.items():
        some = instances[:limit]
        cases = {}
        for one in timed:
            parts = [
                (Single() if way == "single" else build_file_engine(config), *part)
                for part in parts_of(one, exits, plain, some)
            ]
            cases[one.key] = lambda parts=parts: run(parts, pad_token_id)
        device = exits.model.device
        timings = measure(cases, repeats, device, time_budget=time_budget, description=f"measuring, {way}")
        each = {key: timing.median / len(some) for key, timing in timings.items()}
        networks = {one.members[0].layers: each.pop(one.key) for one in timed if one.kind == "plain"}
        found[way] = Costs(networks, each)
    return found


def parts_of(one: Option, exits: Archive, plain: Mapping[Plain, Archive], instances: Sequence[Instance]) -> list[Part]:
    """The networks that an option runs, and the samples that each of them gets; of a cascade those that go on."""
    if one.kind == "exits":
        return [(exits.model.exit_network, one.fitted[0].policy, list(instances))]
    exit_of = one.fitted[0].exits.tolist() if one.fitted else [1] * len(instances)
    return [
        (plain[member].model.exit_network, Final(), [one for one, taken in zip(instances, exit_of) if taken >= number])
        for number, member in enumerate(one.members, 1)
    ]


def run(parts: Sequence[tuple[Engine, Any, ExitPolicy, list[Instance]]], pad_token_id: int) -> Iterator[Any]:
    for engine, network, policy, instances in parts:
        yield from engine.run(network, policy, ragged_parts(instances, pad_token_id, FILE_BATCH))
