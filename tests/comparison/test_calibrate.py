"""`allennlp calibrate`: traces, archives, and the page that shows the evidence."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policies import ExitPolicy
from tests.calibration.thresholds.tables import make_trace
from tests.tiny_project import run

POLICY: dict[str, Any] = {"type": "beem", "thresholds": {"type": "budget", "speedup": 1.5}}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A trace and a policy file."""
    make_trace(600).save(tmp_path / "t.npz")
    (tmp_path / "p.json").write_text(json.dumps(POLICY))
    return tmp_path


def report_of(folder: Path, policy: dict[str, Any], trace: ExitTrace) -> tuple[dict[str, Any], str]:
    trace.save(folder / "t.npz")
    (folder / "p.json").write_text(json.dumps(policy))
    run("calibrate", "--trace", str(folder / "t.npz"), "--policy", str(folder / "p.json"), "--report-dir", str(folder))
    return json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


def test_a_trace_alone_gives_a_policy_file_that_decides_alike(files: Path, without_plots: None) -> None:
    output = run(
        "calibrate", "--trace", str(files / "t.npz"), "--policy", str(files / "p.json"),
        "--output-policy", str(files / "out.json"), "--report-dir", str(files / "report"),
    ).stdout  # fmt: skip
    trace = ExitTrace.load(files / "t.npz")
    policy = ExitPolicy.from_params(json.loads((files / "out.json").read_text()))
    report = json.loads((files / "report" / "report.json").read_text())
    decisions = replay(policy, trace)
    assert torch.bincount(decisions.exits - 1, minlength=6).tolist() == report["calibration"]["exit_histogram"]
    assert report["metrics"]["accuracy"] == pytest.approx(1 - report["calibration"]["error"])
    assert "layer speed-up" in output and "out.json" in output
    assert report["curve"]["accuracy_at"]["1.5"] == pytest.approx(report["metrics"]["accuracy"], abs=0.02)
    assert len(report["reliability"]) == 6 and len(report["theory"]["exits"]) == 6


def test_plain_networks_are_points_of_the_page(files: Path) -> None:
    trace = ExitTrace.load(files / "t.npz")
    plain = []
    for layers in (2, 3):
        part = ExitTrace(trace.logits[:, [layers]], trace.labels, meta={"exit_layers": [layers]})
        plain.append(str(files / f"plain{layers}.npz"))
        part.save(plain[-1])
    given = ["--trace", str(files / "t.npz"), "--policy", str(files / "p.json"), "--plain", *plain]
    run("calibrate", *given, "--report-dir", str(files / "report"))
    found = json.loads((files / "report" / "report.json").read_text())["plain"]
    right = [float((trace.predictions[:, layers] == trace.labels).double().mean()) for layers in (3, 2)]
    assert found == {"accuracy": pytest.approx(right), "speedup": [2.0, 3.0]}
    part.select(range(9)).save(files / "plain2.npz")
    refused = run("calibrate", *given, check=False)
    assert refused.returncode == 1 and "plain2.npz: found other samples (9)" in refused.stderr


def test_overrides_change_the_policy(files: Path) -> None:
    run(
        "calibrate", "--trace", str(files / "t.npz"), "--policy", str(files / "p.json"),
        "-o", '{"thresholds.speedup": 2.0, "weights": "cost"}', "--output-policy", str(files / "out.json"),
    )  # fmt: skip
    policy = json.loads((files / "out.json").read_text())
    assert policy["weights"] == pytest.approx([0.1 * layer for layer in range(1, 7)])


class Links(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.images += tag == "img"
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "data")]


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "calibrated", "policy": {"type": "max_probability", "thresholds": {"type": "joint", "speedup": 1.5}}},
        {"type": "max_probability", "thresholds": {"type": "risk_controlled", "epsilon": 0.05}},
        {"type": "patience", "patience": 2},
        {"type": "final"},
    ],
)
def test_the_page_needs_nothing_else(tmp_path: Path, policy: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    report, page = report_of(tmp_path, policy, make_trace(400))
    links = Links()
    links.feed(page)
    assert links.images == 3 and all(link.startswith("data:image/svg+xml;base64,") for link in links.found)
    assert "<script" not in page and "http" not in re.sub(r"base64,[^\"]*", "", page)
    for warning in report["calibration"]["warnings"]:
        assert warning.split("'")[0][:40] in page
    assert ("after confidence calibration" in page) == (policy["type"] == "calibrated")
    assert "Theorem 3.1" in page
    assert ("The condition of Theorem 3.1" in page) == (policy["type"] == "beem")
    if policy.get("thresholds", {}).get("type") == "risk_controlled":
        assert "upper bound of accuracy loss" in page


def test_the_same_report_gives_the_same_page(tmp_path: Path) -> None:
    first = report_of(tmp_path, POLICY, make_trace(200))[1]
    assert report_of(tmp_path, POLICY, make_trace(200))[1] == first


def test_without_matplotlib_there_are_tables_and_a_hint(files: Path, without_plots: None) -> None:
    page = report_of(files, POLICY, make_trace(200))[1]
    assert "beem_plugin[plots]" in page and "<img" not in page and page.count("<table>") >= 3


def test_without_labels_and_with_markup_in_names(tmp_path: Path, without_plots: None) -> None:
    trace = make_trace(300)
    unlabelled = ExitTrace(trace.logits, torch.full((300,), -1), meta={"source": "<b>data</b>"})
    policy = {
        "type": "max_probability",
        "thresholds": {"type": "risk_controlled", "risk": "disagreement", "epsilon": 0.1},
    }
    report, page = report_of(tmp_path, policy, unlabelled)
    assert report["curve"] is None and report["calibration"]["error"] is None
    assert "no labels" in page and "<b>data" not in page
    assert report["calibration"]["layer_speedup"] > 1


def test_archive_with_data_gives_a_new_archive_that_evaluates(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        json.dumps({"type": "max_probability", "thresholds": {"type": "budget", "speedup": 1.5}})
    )
    run(
        "calibrate", str(trained / "model.tar.gz"), "--data", "train[holdout]", "--policy", str(tmp_path / "p.json"),
        "--output-archive", str(tmp_path / "new.tar.gz"), "--output-policy", str(tmp_path / "out.json"),
    )  # fmt: skip
    run("evaluate", str(tmp_path / "new.tar.gz"), "validation", "--output-file", str(tmp_path / "e.json"))
    metrics = json.loads((tmp_path / "e.json").read_text())
    assert metrics["exit_policy"] == json.loads((tmp_path / "out.json").read_text())
    assert metrics["calibrated_on"] == "train[holdout]"


def test_archive_alone_uses_its_own_calibration_trace(trained: Path, tmp_path: Path, without_plots: None) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"type": "entropy", "thresholds": "best_on_validation"}))
    run(
        "calibrate", str(trained / "model.tar.gz"), "--policy", str(tmp_path / "p.json"),
        "--report-dir", str(tmp_path),
    )  # fmt: skip
    assert json.loads((tmp_path / "report.json").read_text())["calibration"]["source"] == "train[holdout]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "p.json"], "neither ARCHIVE nor --trace"),
        (["--trace", "t.npz", "--policy", "p.json", "--output-archive", "a.tar.gz"], "allowed with ARCHIVE only"),
        (["--trace", "none.npz", "--policy", "p.json"], "none.npz: no such trace file"),
        (["--trace", "t.npz", "--policy", "p.json", "-o", '{"thresholds.speedup": 0.2}'], "speedup: found 0.2"),
    ],
)
def test_errors_are_one_line(files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(files)
    result = run("calibrate", *arguments, check=False)
    assert result.returncode == 1
    assert message in result.stderr and result.stderr.strip().count("\n") == 0


def test_a_trace_of_another_network_is_refused(trained: Path, files: Path) -> None:
    result = run(
        "calibrate", str(trained / "model.tar.gz"), "--trace", str(files / "t.npz"), "--policy", str(files / "p.json"),
        check=False,
    )  # fmt: skip
    assert result.returncode == 1 and "has exits" in result.stderr
    trace = ExitTrace.load(trained / "calibration" / "trace.npz")
    trace.meta["label_names"] = ["no", "yes"]
    trace.save(files / "other.npz")
    result = run(
        "calibrate", str(trained / "model.tar.gz"), "--trace", str(files / "other.npz"), "--policy", "final",
        check=False,
    )  # fmt: skip
    assert "other.npz has label names ['no', 'yes'], found ['negative', 'positive'] in " in result.stderr


def test_a_policy_by_its_name_is_fitted_to_a_speed(files: Path) -> None:
    shared = ("calibrate", "--trace", str(files / "t.npz"), "--output-policy", str(files / "out.json"))
    run(*shared, "--policy", str(files / "p.json"))
    expected = (files / "out.json").read_text()
    run(*shared, "--policy", "beem", "--speedup", "1.5")
    assert (files / "out.json").read_text() == expected
    output = files / "r.json"
    run("replay", str(files / "t.npz"), "--policy", "final", "--output-file", str(output))
    assert json.loads(output.read_text())["layer_speedup"] == 1
    assert "p.jsonnet: no such file" in run(*shared, "--policy", "p.jsonnet", check=False).stderr
    assert "speedup: found" in run(*shared, "--policy", "patience", "--speedup", "2", check=False).stderr
