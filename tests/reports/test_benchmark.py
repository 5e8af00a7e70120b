"""What a benchmark counts, measures, writes and refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import beem_plugin.commands.benchmark  # noqa: F401  registers the command
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import ExitDecisions
from beem_plugin.reports.benchmark import numbers, run_benchmark
from beem_plugin.reports.timing import Timing, measure, percentiles, ratio
from tests.execution.worlds import World, make_batches
from tests.tiny_project import run


def test_command(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    result = run(
        *("benchmark", str(trained), "validation", "--batch-sizes", "4", "--repeats", "2", "--max-instances", "10"),
        *("--output-file", str(output)),
    )
    assert "layer speed-up" in result.stdout and "speed-up" in result.stdout
    report = json.loads(output.read_text())
    assert report["counted"]["samples"] == 10 and sum(report["counted"]["exit_histogram"]) == 10
    assert 1 < report["counted"]["mac_speedup"] < report["counted"]["layer_speedup"]
    rows = {(row["engine"], row["case"], row["batch_size"]): row for row in report["measured"]}
    assert ("single", "exits", 1) in rows and ("single", "exits", 4) not in rows
    for engine in ("compaction", "depth_pools"):
        assert {case for name, case, size in rows if name == engine} == {"exits", "full_depth", "nobody_leaves"}
    assert rows["transformers", "full_depth", 4]["latency_ms_p99"] > 0
    with (tmp_path / "speed.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)


class Simulates(Engine):
    """Runs every layer for everybody and says afterwards where they would have left."""

    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        for batch in batches:
            state = network.embed(batch)
            for exit_number in range(1, network.num_exits + 1):
                state = network.advance(exit_number, state)
            size = len(batch["input_ids"])
            output = torch.zeros(size, network.num_labels).double()
            yield ExecutedBatch(batch["index"], ExitDecisions(torch.ones(size).long(), output.argmax(1), output, None))


def test_simulated_seconds_are_refused() -> None:
    Engine.register("simulates", exist_ok=True)(Simulates)
    with pytest.raises(ConfigurationError, match="simulates early exit"):
        run_benchmark(World(), MaxProbability(0.9), lambda size: make_batches(6, size), [3], ["simulates"], 1)


def test_lists_of_numbers() -> None:
    assert numbers("1,32", "--batch-sizes") == [1, 32]
    for text in ("", "0", "a,1"):
        with pytest.raises(ConfigurationError, match="--batch-sizes"):
            numbers(text, "--batch-sizes")


def test_cases_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []

    def case(name: str) -> Iterator[int]:
        calls.append(name)
        yield from range(3)

    timings = measure({"a": lambda: case("a"), "b": lambda: case("b")}, 4, torch.device("cpu"))
    assert calls[:2] == ["a", "b"] and len(calls) == 10
    assert all(set(calls[start : start + 2]) == {"a", "b"} for start in range(2, 10, 2))
    assert len(timings["a"].seconds) == 4 and len(timings["a"].latencies) == 3


def test_ratios_pair_the_repeats_and_percentiles_are_ranks() -> None:
    assert ratio(Timing([2.0, 9.0, 4.0]), Timing([1.0, 3.0, 2.0])) == 2.0
    assert percentiles([value / 1000 for value in range(1, 101)]) == {
        "latency_ms_p50": pytest.approx(51),
        "latency_ms_p95": pytest.approx(96),
        "latency_ms_p99": pytest.approx(100),
    }
