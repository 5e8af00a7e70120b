"""`allennlp replay` as a comparison: several traces, policies, grids; tables, files and plots."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.calibration.trace import ExitTrace
from tests.calibration.thresholds.tables import make_trace
from tests.tiny_project import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in (0, 1):
        for part, size in (("dev", 150), ("held", 120)):
            trace = make_trace(size, seed=2 * seed + (part == "held"))
            trace.meta = {"metric": "matthews"}
            trace.save(tmp_path / f"s{seed}" / f"{part}.npz")
    return tmp_path


def write(path: Path, block: Any) -> str:
    path.write_text(json.dumps(block))
    return str(path)


def replayed(folder: Path, *arguments: str) -> dict[str, Any]:
    run("replay", *arguments, "--output-file", str(folder / "r.json"))
    found: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return found


def test_a_sweep_gives_what_each_setting_gives(folder: Path) -> None:
    dev, held = str(folder / "s0" / "dev.npz"), str(folder / "s0" / "held.npz")
    grids: list[dict[str, Any]] = [
        {"type": "beem", "weights": "accuracy", "thresholds": {"grid": [0.8, 1.7, [0.5, 0.9, 1.5, 2.0, "never"]]}},
        {"type": "calibrated", "policy": {"type": "entropy", "thresholds": {"grid": [0.2, 0.5]}}},
        {"type": "margin", "thresholds": {"type": "budget", "speedup": [1.5, 2.5]}},
        {"type": "confident_patience", "patience": [1, 2], "entropy_threshold": [0.3, 0.8], "output": "run_mean"},
        {"type": "fixed_exit", "exit": [2, 4]},
    ]
    for block in grids:
        policy = write(folder / "p.json", block)
        results = replayed(folder, dev, "--policy", policy, "--calibrate-on", held)["results"]
        for result in results:
            single = write(folder / "single.json", filled(block, result["setting"]))
            expected = replayed(folder, dev, "--policy", single, "--calibrate-on", held)
            for key in ("n", "final_metrics", "exit_histogram", "layer_speedup", "average_exit", "policy", "weights"):
                assert result[key] == expected[key], key
            assert result["metrics"] == pytest.approx(expected["metrics"], abs=1e-12)


def filled(block: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(block))
    for key, value in setting.items():
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return result


def test_one_trace_and_one_policy_keep_their_object(folder: Path) -> None:
    policy = write(folder / "p.json", {"type": "patience", "patience": 1})
    result = replayed(folder, str(folder / "s0" / "dev.npz"), "--policy", policy)
    assert list(result) == [
        "name", "n", "num_exits", "metrics", "final_metrics", "layer_speedup", "layers_saved", "average_exit",
        "average_layer", "exit_histogram", "policy", "weights", "thresholds", "warnings", "calibration", "intervals",
        "paired_tests",
    ]  # fmt: skip
    assert result["name"] == "p" and list(result["metrics"]) == ["accuracy", "matthews"]


def test_several_traces_are_calibrated_each_on_its_own(folder: Path) -> None:
    traces = [str(folder / f"s{seed}" / "dev.npz") for seed in (0, 1)]
    held = [str(folder / f"s{seed}" / "held.npz") for seed in (0, 1)]
    policy = write(folder / "p.json", {"type": "beem", "weights": "accuracy", "thresholds": 1.5})
    output = replayed(folder, *traces, "--policy", policy, "--calibrate-on", *held)
    each, paired = output["results"], output["paired_tests"][-1]
    assert (paired["trace"], paired["first"], paired["second"]) == ("all", "p", "last exit")
    lost = [result["metrics"]["accuracy"] - result["final_metrics"]["accuracy"] for result in each]
    assert paired["pairs"] == 2 and paired["difference"] == pytest.approx(sum(lost) / 2)
    assert [result["trace"] for result in each] == ["s0/dev", "s1/dev"]
    for result, trace, other in zip(each, traces, held, strict=True):
        assert result["weights"] == replayed(folder, trace, "--policy", policy, "--calibrate-on", other)["weights"]
    all_on_one = replayed(folder, *traces, "--policy", policy, "--calibrate-on", held[0])["results"]
    assert all_on_one[0]["weights"] == all_on_one[1]["weights"] == each[0]["weights"]
    assert replayed(folder, "--policy", policy, "--calibrate-on", held[0], traces[0])["weights"] == each[0]["weights"]


def test_curves_tables_and_plots(folder: Path) -> None:
    variants = {
        "confidence": {"type": "max_probability", "thresholds": {"quantiles": 12}},
        "pcee": {"type": "confident_patience", "patience": [1, 2], "entropy_threshold": {"linspace": [0, 1.5, 8]}},
        "one": {"type": "margin", "thresholds": 0.5},
    }
    traces = [str(folder / f"s{seed}" / "dev.npz") for seed in (0, 1)]
    command = [*traces, "--policies", write(folder / "v.json", variants), "--metric", "matthews"]
    files = ["--csv", str(folder / "r.csv"), "--plot", str(folder / "r.svg"), "--output-file", str(folder / "r.json")]
    printed = run("replay", *command, *files).stdout
    assert "pcee patience=2" in printed and "area, 1x to 3x" in printed and "±" in printed
    assert printed.index("area, 1x to 3x") < printed.index("left at exit 1"), "the comparison comes first"
    output = json.loads((folder / "r.json").read_text())
    assert len(output["results"]) == 2 * (13 + 16 + 1)
    assert [curve["name"] for curve in output["curves"][:3]] == ["confidence", "pcee patience=1", "pcee patience=2"]
    assert all(curve["metric"] == "matthews" and curve["area"] is not None for curve in output["curves"])
    rows = list(csv.DictReader((folder / "r.csv").open()))
    assert len(rows) == len(output["results"])
    assert {"trace", "family", "thresholds", "patience", "entropy_threshold", "layer_speedup"} <= set(rows[0])
    assert float(rows[0]["matthews_area_1x_3x"]) == output["curves"][0]["area"]
    first = (folder / "r.svg").read_bytes()
    assert b"</svg>" in first
    for end in ("svg", "png"):
        run("replay", *command, "--plot", str(folder / f"r.{end}"))
    assert (folder / "r.svg").read_bytes() == first
    assert (folder / "r.png").read_bytes().startswith(b"\x89PNG")


def test_curve_sweeps_what_the_settings_do_not_say(folder: Path) -> None:
    dev = str(folder / "s0" / "dev.npz")
    names = {"conf": {"type": "max_probability", "thresholds": 0.8}, "pabee": {"type": "patience", "patience": 2}}
    names["fixed"] = {"type": "fixed_exit", "exit": 2}
    output = replayed(folder, dev, "--policies", write(folder / "v.json", names), "--curve")
    assert [curve["name"] for curve in output["curves"]] == ["conf", "pabee"]
    grid = write(folder / "grid.json", {"type": "patience", "patience": [1, 2, 3, 4, 5, 6]})
    by_hand = replayed(folder, dev, "--policy", grid)["curves"][0]
    swept = output["curves"][1]
    assert swept["points"]["settings"][-2:] == [2.0, 1.0]
    assert swept["area"] == pytest.approx(by_hand["area"]) and swept["at"] == pytest.approx(by_hand["at"])


def test_unlabelled_traces_have_no_metrics_and_no_curves(folder: Path) -> None:
    trace = make_trace(30)
    ExitTrace(trace.logits, torch.full((30,), -1)).save(folder / "u.npz")
    policy = write(folder / "p.json", {"type": "patience", "patience": [1, 2]})
    output = replayed(folder, str(folder / "u.npz"), "--policy", policy, "--curve", "--csv", str(folder / "r.csv"))
    assert [result["metrics"] for result in output["results"]] == [{}, {}] and "curves" not in output
    refused = run("replay", str(folder / "u.npz"), "--policy", policy, "--plot", str(folder / "x.png"), check=False)
    assert refused.returncode == 1 and "no trace with labels" in refused.stderr


@pytest.mark.parametrize(
    "block, arguments, message",
    [
        ({"type": "patience", "patience": [1, 2]}, ["--predictions-output-file", "x"], "2 setting(s)"),
        ({"type": "patience", "patience": {"grid": [1]}}, ["--predictions-output-file", "x"], "without a grid"),
        ({"type": "patience", "patience": [1, 0]}, [], "p.json: patience: found 0, allowed: 1 or more"),
        (
            {"type": "patience", "patience": [[1, 2]]},
            [],
            "p.json: patience: found [1, 2] (a list), expected an integer",
        ),
        ({"type": "beem", "thresholds": {"grid": [1, 2]}}, [], "p.json: beem has no thresholds or weights yet"),
        ({"type": "final"}, ["--plot", "x.pdf"], ".png or .svg"),
        ({"type": "final"}, ["--metric", "mathews"], "--metric: found 'mathews', allowed: matthews"),
        ({"type": "final"}, ["--calibrate-on", __file__, __file__], "--calibrate-on: found 2 files for 1 trace(s)"),
        ({"type": "margin", "thresholds": "budgt"}, [], "p.json: thresholds: found 'budgt', allowed: a number, a list"),
        ({"type": "final"}, ["--output-file", "x", "--csv", "./x"], "--csv: found ./x, which is what --output-file"),
    ],
)
def test_errors(folder: Path, block: dict[str, Any], arguments: list[str], message: str) -> None:
    policy = write(folder / "p.json", block)
    result = run("replay", str(folder / "s0" / "dev.npz"), "--policy", policy, *arguments, check=False)
    assert result.returncode == 1 and message in result.stderr and "Traceback" not in result.stderr
    assert not Path("x").exists()


def test_no_output_takes_the_place_of_an_input(folder: Path) -> None:
    trace, policy = str(folder / "s0" / "dev.npz"), write(folder / "p.json", {"type": "final"})
    for path in (trace, policy):
        refused = run("replay", trace, "--policy", policy, "--output-file", path, check=False)
        assert refused.returncode == 1 and f"--output-file: found {path}, which is read as well" in refused.stderr
    assert len(ExitTrace.load(trace)) == 150


def test_traces_that_do_not_belong_together(folder: Path) -> None:
    policy = write(folder / "p.json", {"type": "patience", "patience": 1})
    paths = []
    for name, meta in (
        ("one", {"label_names": ["no", "yes", "a"]}),
        ("other", {"label_names": ["yes", "no", "a"]}),
        ("odd", {"metric": "acc"}),
    ):
        trace = make_trace(20)
        ExitTrace(torch.randn(20, 4, 3), trace.labels, meta=meta).save(folder / f"{name}.npz")
        paths.append(str(folder / f"{name}.npz"))
    one, other, odd = paths
    for arguments, message in (
        ([one, "--calibrate-on", other], f"{other} has label names ['yes', 'no', 'a'], found ['no', 'yes', 'a'] in"),
        ([one, one], f"{one}: found twice among the traces"),
        ([odd], f"{odd}: metric: found 'acc', allowed: accuracy"),
        ([one, "--metric", "f1"], f"{one}: metric 'f1' is the F1 of label 1 of two"),
    ):
        refused = run("replay", *arguments, "--policy", policy, check=False)
        assert refused.returncode == 1 and message in refused.stderr
    run("replay", one, "--policy", policy, "--calibrate-on", str(renamed(folder, one)))


def renamed(folder: Path, path: str) -> Path:
    """A trace without label names."""
    trace = ExitTrace.load(path)
    ExitTrace(trace.logits, trace.labels).save(folder / "nameless.npz")
    return folder / "nameless.npz"


def test_a_policy_is_needed(folder: Path) -> None:
    result = run("replay", str(folder / "s0" / "dev.npz"), check=False)
    assert result.returncode == 1 and "--policy FILE or --policies FILE" in result.stderr


def test_a_regression_is_compared_by_correlation(folder: Path) -> None:
    values = torch.rand(80) * 5
    noise = torch.randn(80, 6, 1, generator=torch.Generator().manual_seed(0))
    logits = values[:, None, None] + noise * torch.linspace(1, 0.1, 6)[:, None]
    ExitTrace(logits, values).save(folder / "sts.npz")
    policy = write(folder / "p.json", {"type": "patience", "patience": [1, 2], "tolerance": 0.5})
    output = replayed(folder, str(folder / "sts.npz"), "--policy", policy, "--curve")
    assert output["curves"][0]["metric"] == "pearson_spearman"
    single = write(folder / "single.json", {"type": "patience", "patience": 2, "tolerance": 0.5})
    expected = replayed(folder, str(folder / "sts.npz"), "--policy", single)
    assert output["results"][1]["exit_histogram"] == expected["exit_histogram"]
    assert output["results"][1]["metrics"] == pytest.approx(expected["metrics"], abs=1e-9)
    refused = run("replay", str(folder / "sts.npz"), "--policy", policy, "--metric", "f1", check=False)
    assert refused.returncode == 1 and "sts.npz: --metric: found 'f1', allowed: pearson_spearman" in refused.stderr


def test_plain_networks_are_points_and_the_deepest_is_the_reference(folder: Path) -> None:
    """Plain networks of a third and twice the depth of the six exits, with the outputs of exits 2 and 6."""
    traces = [str(folder / f"s{seed}" / "dev.npz") for seed in (0, 1)]
    plain = []
    for layers, column in ((2, 1), (12, 5)):
        for seed, path in enumerate(traces):
            trace = ExitTrace.load(path)
            meta = {"metric": "matthews", "exit_layers": [layers]}
            file = folder / f"s{seed}" / f"plain{layers}.npz"
            ExitTrace(trace.logits[:, column : column + 1], trace.labels, meta=meta).save(file)
            plain.append(str(file))
    policy = write(folder / "p.json", {"type": "max_probability", "thresholds": 0.7})
    alone = replayed(folder, traces[0], "--policy", policy)
    found = replayed(folder, traces[0], "--policy", policy, "--plain", plain[0], plain[2])
    rows = {row["name"]: row for row in found["results"]}
    assert list(rows) == ["p", "plain network of 12 layers", "plain network of 2 layers"]
    assert rows["p"]["layer_speedup"] == pytest.approx(2 * alone["layer_speedup"])
    assert rows["p"]["metrics"] == alone["metrics"] and rows["plain network of 2 layers"]["layer_speedup"] == 6
    last = alone["final_metrics"]["accuracy"]
    assert rows["plain network of 12 layers"]["metrics"]["accuracy"] == pytest.approx(last)
    pairs = {(pair["first"], pair["second"]): pair for pair in found["paired_tests"]}
    assert {second for _, second in pairs} == {"plain network of 12 layers"} and len(pairs) == 3
    difference = pairs["p", "plain network of 12 layers"]["difference"]
    assert difference == pytest.approx(alone["metrics"]["accuracy"] - last)
    (curve,) = found["curves"]
    assert curve["name"] == "plain networks" and curve["at"]["2.0"] is not None

    both = replayed(folder, *traces, "--policy", policy, "--plain", *plain)
    assert len(both["results"]) == 6
    over_traces = [pair for pair in both["paired_tests"] if pair["trace"] == "all"]
    assert {pair["second"] for pair in over_traces} == {"plain network of 12 layers"}

    shallow = replayed(folder, traces[0], "--policy", policy, "--plain", plain[0])
    assert shallow["results"][0]["layer_speedup"] == pytest.approx(alone["layer_speedup"])
    assert {pair["second"] for pair in shallow["paired_tests"]} == {"last exit", "plain network of 2 layers"}
    for given, message in (
        (plain[:1] * 2, "found 2 layers a second time"),
        ([plain[1]], "found other samples"),
        ([str(folder / "no.npz")], "no.npz"),
    ):
        refused = run("replay", traces[0], "--policy", policy, "--plain", *given, check=False)
        assert refused.returncode == 1 and message in refused.stderr, refused.stderr
    refused = run("replay", *traces, "--policy", policy, "--plain", plain[0], check=False)
    assert "--plain: found 1 files for 2 traces" in refused.stderr


def test_a_network_split_between_two_machines(folder: Path) -> None:
    dev = str(folder / "s0" / "dev.npz")
    policy = write(folder / "p.json", {"type": "max_probability", "thresholds": {"grid": [0.6, 0.9]}})
    options = ["--policy", policy, "--edge-layers", "2", "--offload-cost", "3", "--csv", str(folder / "r.csv")]
    for result in replayed(folder, dev, *options)["results"]:
        counts = result["exit_histogram"]
        first, second, sent, samples = counts[0], counts[1], sum(counts[2:]), sum(counts)
        assert result["offloaded"] == pytest.approx(sent / samples)
        assert result["edge_cost"] == pytest.approx((first + 2 * second + (2 + 3) * sent) / samples)
    with (folder / "r.csv").open(newline="") as file:
        assert {"offloaded", "edge_cost"} <= set(next(csv.DictReader(file)))
    for layers, allowed in (("0", "1 or more"), ("9", "1 to ")):
        refused = run("replay", dev, "--policy", policy, "--edge-layers", layers, check=False)
        assert refused.returncode == 1 and f"--edge-layers: found {layers}, allowed: {allowed}" in refused.stderr
