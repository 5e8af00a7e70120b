"""Named entities end to end: columns are read, a tagger is trained, calibrated, evaluated, traced."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import beem_plugin.components  # noqa: F401
from beem_plugin import load
from beem_plugin.archival import load_archive
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import DataError
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.evaluation.evaluate import evaluate_archive
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.training.train import train_model
from tests.ablation_in_process import train_in_process
from tests.tiny_project import BAD, CONFIGS, GOOD, PLAIN, run

TAGS = ["O", "B-GOOD", "I-GOOD", "B-BAD"]


def write_columns(path: Path, count: int, seed: int) -> str:
    """Runs of one or two good words, single bad ones, and plain words between them."""
    rng = random.Random(seed)
    lines = ["-DOCSTART- O", ""]
    for _ in range(count):
        for _ in range(rng.randint(2, 4)):
            lines += [f"{rng.choice(PLAIN[:-1])} NN O" for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.5:
                lines.append(f"{rng.choice(BAD)} NN B-BAD")
            else:
                lines.append(f"{rng.choice(GOOD)} NN B-GOOD")
                lines += ["very NN I-GOOD"] * (rng.random() < 0.5)
        lines.append("")
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory, tiny_environment: dict[str, str]) -> Path:
    folder, backbone = tmp_path_factory.mktemp("tags"), tiny_environment["BEEM_BACKBONE"]
    config = load_config(
        CONFIGS / "tagging" / "conll2003.jsonnet", "", {"CONLL_DIR": str(folder), **tiny_environment}
    ).as_dict(quiet=True)
    for name, count, seed in (("eng.train", 150, 1), ("eng.testa", 20, 2)):
        write_columns(folder / name, count, seed)
    config["dataset_reader"] |= {"tokenizer": {"model_name": backbone}, "label_names": TAGS}
    config["dataset_reader"]["holdout_fraction"] = 0.3
    config["model"]["encoder"]["backbone"] = {"model_name": backbone}
    config["trainer"] |= {"num_epochs": 12, "cuda_device": -1}
    config["data_loader"]["batch_size"] = 8
    config["trainer"]["optimizer"]["lr"] = 3e-3
    train_model(Params(config), folder / "run")
    return folder


def test_a_trained_tagger_finds_entities_and_exits_early(tagger: Path) -> None:
    metrics = json.loads((tagger / "run" / "metrics.json").read_text())
    assert metrics["best_validation_accuracy"] > 0.9 and metrics["calibration_source"].endswith("[holdout]")
    archive = load_archive(tagger / "run" / "model.tar.gz")
    found = evaluate_archive(archive, str(tagger / "eng.testa")).metrics
    assert found["f1"] > 0.8 and found["layer_speedup"] > 1.2 and sum(found["exit_histogram"]) == 20


def test_replay_decides_as_the_tagger_does(tagger: Path, tmp_path: Path) -> None:
    data = str(tagger / "eng.testa")
    run("trace", str(tagger / "run"), data, "--output-file", str(tmp_path / "t.npz"))
    trace = ExitTrace.load(tmp_path / "t.npz")
    archive = load_archive(tagger / "run" / "model.tar.gz")
    model: Any = archive.model
    for config in (
        {"type": "max_probability", "thresholds": 0.7},
        {"type": "entropy", "thresholds": 0.5},
        {"type": "margin", "thresholds": 0.4},
        {"type": "patience", "patience": 1},
    ):
        policy = ExitPolicy.from_params(Params(dict(config)))
        policy.bind(model.encoder.exit_layers, model.encoder.num_labels)
        model.exit_policy = policy
        found = evaluate_archive(archive, data).metrics
        decisions = replay(policy, trace)
        assert torch.bincount(decisions.exits - 1, minlength=3).tolist() == found["exit_histogram"], config
        right = (decisions.predictions == trace.labels).double().mean()
        assert float(right) == found["accuracy"], config


def test_engines_give_what_single_sentences_give(tagger: Path, tmp_path: Path) -> None:
    found = {}
    for engine, size in (("single", "1"), ("compaction", "7"), ("depth_pools", "100")):
        options = json.dumps({"model.engine": {"type": engine}})
        lines = tmp_path / f"{engine}.jsonl"
        run(
            "evaluate", str(tagger / "run"), str(tagger / "eng.testa"), "-o", options, "--batch-size", size,
            "--predictions-output-file", str(lines),
        )  # fmt: skip
        found[engine] = [
            {name: value for name, value in json.loads(line).items() if name != "score"}
            for line in lines.read_text().splitlines()
        ]
    assert found["single"] == found["compaction"] == found["depth_pools"]
    assert {line["exit"] for line in found["single"]} > {1}


def test_predictions_and_wrong_tags(tagger: Path, tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    run("evaluate", str(tagger / "run"), str(tagger / "eng.testa"), "--predictions-output-file", str(lines))
    first = json.loads(lines.read_text().splitlines()[0])
    assert len(first["tags"]) == len(first["gold_tags"]) and first["exit"] in (1, 2, 3)
    (tmp_path / "bad").write_text("a NN O\nfilm NN B-FILM\n")
    reader = load_archive(tagger / "run" / "model.tar.gz").dataset_reader
    with pytest.raises(DataError, match="bad:2: tag: found 'B-FILM', allowed: "):
        reader.read(str(tmp_path / "bad"))


def test_predict_tags_lists_and_texts(tagger: Path, tmp_path: Path) -> None:
    words = ["the", "film", "is", "good", "very", "bad"]
    rows = [{"words": words, "id": 7}, {"words": " ".join(words)}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("predict", str(tagger / "run"), str(tmp_path / "in.jsonl"), "--output-file", str(tmp_path / "o.jsonl"))
    first, second = (json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines())
    assert first["tags"] == second["tags"] and first["words"] == words and len(first["tags"]) == 6
    assert first["tags"][5] == "B-BAD" and first["id"] == 7 and first["exit"] == second["exit"]
    run("predict", str(tagger / "run"), str(tagger / "eng.testa"), "--output-file", str(tmp_path / "c.jsonl"))
    found = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert len(found) == 20 and all(len(one["words"]) == len(one["gold_tags"]) == len(one["tags"]) for one in found)
    page = ["--html", str(tmp_path / "page.html")]
    refused = run("predict", str(tagger / "run"), str(tmp_path / "in.jsonl"), *page, check=False)
    assert refused.returncode == 1 and "--html: found a model of tags" in refused.stderr


def test_a_pipeline_takes_words_as_one_text(tagger: Path) -> None:
    pipeline = load(tagger / "run")
    words = ["the", "film", "is", "good"]
    one = pipeline(" ".join(words))
    assert len(one["tags"]) == 4 and pipeline({"words": words}) == one
    assert pipeline([words]) == [one] and pipeline({"words": [words, "good"]})["tags"][0] == one["tags"]
    assert len(pipeline.trace([words, "good"])) == 2
    trace = pipeline.trace([words, "good"] * 20, [one["tags"], ("O",)] * 20)
    assert bool(trace.known.all()) and pipeline.with_policy(speedup=1.2, trace=trace).policy
    with pytest.raises(DataError, match=r"labels\[1\]: found \['O', 'O'\], allowed: 1 tags of O, B-GOOD"):
        pipeline.trace([words, "good"], [one["tags"], ["O", "O"]])


def test_benchmark_calibrate_and_ablate_take_a_tagger(
    tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_plots: None
) -> None:
    train_in_process(monkeypatch)
    data, archive = str(tagger / "eng.testa"), str(tagger / "run" / "model.tar.gz")
    run("benchmark", archive, data, "--repeats", "1", "--batch-sizes", "4", "--output-file", str(tmp_path / "b.json"))
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["counted"]["layer_speedup"] > 1.2 and report["counted"]["mac_speedup"] > 1
    assert {row["engine"] for row in report["measured"]} >= {"single", "compaction", "depth_pools"}
    (tmp_path / "p.json").write_text('{"type": "entropy", "thresholds": {"type": "budget", "speedup": 1.5}}')
    new = str(tmp_path / "new.tar.gz")
    run("calibrate", archive, "--policy", str(tmp_path / "p.json"), "--output-archive", new)
    run("evaluate", new, data, "--output-file", str(tmp_path / "e.json"))
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["exit_policy"]["type"] == "entropy" and set(found["per_class"]) == {"GOOD", "BAD"}
    assert found["last_exit"]["f1"] > 0.8 and found["difference_from_last_exit"]["pairs"] == 20
    (tmp_path / "v.json").write_text('{"margin": {"model.exit_policy": {"type": "margin", "thresholds": 0.5}}}')
    base = json.loads((tagger / "run" / "config.json").read_text())
    base["trainer"]["num_epochs"] = 1
    (tmp_path / "base.json").write_text(json.dumps(base))
    run("ablate", str(tmp_path / "base.json"), str(tmp_path / "v.json"), "-s", str(tmp_path / "a"), "--measure")
    rows = json.loads((tmp_path / "a" / "ablation.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["base", "margin"] and not any(row["errors"] for row in rows)
    assert 0.9 < rows[1]["mac_speedup_over_base"]["median"] < 3 and rows[1]["seconds"]["median"] > 0


def test_a_policy_on_all_probabilities_is_refused(tagger: Path) -> None:
    policy = json.dumps({"model.exit_policy": {"type": "cascaded_ensemble", "thresholds": 0.9}})
    refused = run("evaluate", str(tagger / "run"), "x", "-o", policy, check=False)
    assert refused.returncode == 1 and "model.exit_policy: found cascaded_ensemble, which reads" in refused.stderr
