"""Archives and traces of release 0.1 load, and give the results that release 0.1 gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401  registers everything
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policy import ExitPolicy
from tests.tiny_project import run

FOLDER = Path(__file__).parent / "fixtures" / "release_0_1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def predicted(archive: str, inputs: str, output: Path, *arguments: str) -> list[dict[str, Any]]:
    run("predict", str(FOLDER / archive), str(FOLDER / inputs), "--output-file", str(output), "--silent", *arguments)
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("expected", ["predictions", "other_predictions"])
def test_a_classifier_predicts_the_same(tmp_path: Path, expected: str) -> None:
    """`other_predictions` are of another policy, which is calibrated on the trace in the archive."""
    overrides = json.dumps(EXPECTED["other_policy"]) if expected == "other_predictions" else "{}"
    found = predicted("classifier.tar.gz", "texts.csv", tmp_path / "found.jsonl", "-o", overrides)
    assert len(found) == len(EXPECTED[expected]) == 24
    for line, before in zip(found, EXPECTED[expected], strict=True):
        assert (line["label"], line["exit"]) == (before["label"], before["exit"])
        assert line["probabilities"] == pytest.approx(before["probabilities"], abs=1e-5)
        assert line["score"] == pytest.approx(before["score"], abs=1e-5)


def test_a_captioner_predicts_the_same(tmp_path: Path) -> None:
    found = predicted("captioner.tar.gz", "images", tmp_path / "found.jsonl")
    assert len(found) == len(EXPECTED["captions"]) == 4
    for line, before in zip(found, EXPECTED["captions"], strict=True):
        assert {key: line[key] for key in ("caption", "tokens", "exits")} == {
            key: before[key] for key in ("caption", "tokens", "exits")
        }
        assert line["score"] == pytest.approx(before["score"], abs=1e-4)


@pytest.mark.parametrize("name", ["trace", "token_trace"])
def test_policies_are_calibrated_and_replayed_the_same(name: str) -> None:
    trace = ExitTrace.load(FOLDER / f"{name}.npz")
    for before in EXPECTED["replays"][name]:
        policy = ExitPolicy.from_params(json.loads(json.dumps(before["config"])))
        report = policy.calibrate(trace)
        if '"joint"' in json.dumps(before["config"]):
            # Its search changed since: as few errors, at a higher speed.
            assert report.error == pytest.approx(before["error"])
            assert report.layer_speedup == pytest.approx(60 / 31) and before["layer_speedup"] == 1.6
            assert report.thresholds == pytest.approx([0.2807491, 0.1893962, 0.1836125], abs=1e-6)
            continue
        decisions = replay(policy, trace)
        assert report.error == pytest.approx(before["error"]), before["config"]
        assert report.layer_speedup == pytest.approx(before["layer_speedup"])
        assert report.thresholds == (pytest.approx(before["thresholds"]) if before["thresholds"] else None)
        assert decisions.exits.tolist() == before["exits"]
        assert decisions.predictions.tolist() == before["predictions"]


@pytest.mark.parametrize("name", ["trace", "token_trace"])
def test_calibrated_policies_decide_the_same(name: str) -> None:
    trace = ExitTrace.load(FOLDER / f"{name}.npz")
    for before in EXPECTED["replays"][name]:
        decisions = replay(ExitPolicy.from_params(json.loads(json.dumps(before["calibrated"]))), trace)
        assert decisions.exits.tolist() == before["exits"], before["config"]
        assert decisions.predictions.tolist() == before["predictions"]
