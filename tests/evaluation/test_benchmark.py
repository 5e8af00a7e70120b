"""What a benchmark counts, measures, writes and refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

import beem_plugin.commands.benchmark  # noqa: F401  registers the command
from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.evaluation.benchmark import names, numbers
from beem_plugin.execution import Compaction
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.metering.computed import checked_decisions
from beem_plugin.execution.metering.timing import Timing, measure, percentiles, ratio
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policies import FixedExit, MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.tasks.engine_cases import engine_cases
from tests.execution.worlds import World, make_batches, reference_trace
from tests.ragged import ragged_batches
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
        found = {row["condition"] for row in report["measured"] if row["engine"] == engine}
        assert found == {"exits", "full_depth", "no_sample_exits"}
    assert rows["transformers", "full_depth", 4]["latency_ms_p99"] > 0
    with (tmp_path / "speed.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def test_as_many_samples_as_fit_into_the_time(trained: Path) -> None:
    options = ("--batch-sizes", "4", "--engines", "compaction", "--time-budget", "0")
    result = run("benchmark", str(trained), "validation", *options)
    refused = run("benchmark", str(trained), "validation", "--engines", "single,compacton", check=False)
    assert "error: --engines: found 'compacton', allowed: compaction, " in refused.stderr
    said = " ".join(result.stdout.split())
    assert "median of 1 repeats" in said and "8 samples of 40; --time-budget SECONDS measures more" in said


class Simulates(Engine):
    """Runs every layer for everybody and says afterwards where they would have left."""

    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        for batch in batches:
            state = network.embed(batch.padded())
            for exit_number in range(1, network.num_exits + 1):
                state = network.advance(exit_number, state)
            size = len(batch)
            output = torch.zeros(size, network.num_labels).double()
            yield ExecutedBatch(batch.index, ExitDecisions(torch.ones(size).long(), output.argmax(1), output, None))


def test_simulated_seconds_are_refused() -> None:
    Engine.register("simulates", exist_ok=True)(Simulates)
    with pytest.raises(ConfigurationError, match="simulates early exit"):
        engine_cases(World(), MaxProbability(0.9), list(ragged_batches(make_batches(6, 3))), ["simulates"])


class Pretends(Engine):
    """Gives the answers of early exit, which it has computed at full depth."""

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        for batch in batches:
            state = network.embed(batch.padded())
            for exit_number in range(1, network.num_exits + 1):
                state = network.advance(exit_number, state)
        yield from Compaction().run(getattr(network, "network", network), policy, batches)


@pytest.mark.parametrize("size", [1, 7, 20])
def test_samples_that_stay_do_not_hide_a_simulation(size: int) -> None:
    Engine.register("pretends", exist_ok=True)(Pretends)
    world, batches = World(), make_batches(20, size)
    trace = reference_trace(world, batches)
    policy = next(policy for policy in MIXED if is_mixed(policy, trace))
    with pytest.raises(ConfigurationError, match="'pretends' computes the layers of samples that have left"):
        checked_decisions("pretends", world, policy, list(ragged_batches(batches)))


MIXED = [MaxProbability(share / 40) for share in range(14, 40)]


def is_mixed(policy: ExitPolicy, trace: ExitTrace) -> bool:
    """Whether some samples leave early, and others stay to the end."""
    staying = int((replay(policy, trace).exits == trace.num_exits).sum())
    return 4 <= staying <= 14


@pytest.mark.parametrize("engine", ["single", "compaction", "depth_pools"])
@pytest.mark.parametrize("exit_layers", [[1, 2, 3, 4], [3, 4]])
def test_real_engines_are_never_refused(engine: str, exit_layers: list[int]) -> None:
    world = World(exit_layers=exit_layers)
    for seed, (count, size) in enumerate([(1, 1), (2, 2), (9, 4), (30, 7), (30, 30)]):
        batches = list(ragged_batches(make_batches(count, size, seed)))
        for policy in MIXED[::6]:
            checked_decisions(engine, world, policy, batches)
        policy_of_all: ExitPolicy = FixedExit(1)
        assert checked_decisions(engine, world, policy_of_all, batches)[1] > 1


def test_each_engine_once() -> None:
    assert names("single, compaction,single,") == ["single", "compaction"]


def test_refused_before_anything_is_measured(trained: Path, tmp_path: Path) -> None:
    asked = ("benchmark", str(trained), "validation")
    (tmp_path / "file").touch()
    for extra, message in (
        (("--max-instances", "-3"), "--max-instances: found -3, allowed: 1 or more"),
        (("--output-file", str(tmp_path)), f"--output-file: {tmp_path}: is a directory"),
        (("--output-file", str(tmp_path / "file" / "b.json")), f"{tmp_path / 'file'} is a file, a directory is needed"),
    ):
        refused = run(*asked, *extra, check=False)
        assert refused.returncode == 1 and message in refused.stderr, refused.stderr
        assert not refused.stdout


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
        "latency_ms_p50": pytest.approx(50),
        "latency_ms_p95": pytest.approx(95),
        "latency_ms_p99": pytest.approx(99),
    }
    assert set(percentiles([0.003]).values()) == {3.0}
    assert percentiles([0.001, 0.002, 0.003])["latency_ms_p50"] == 2.0
