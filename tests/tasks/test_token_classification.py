"""Named entities end to end: columns are read, a tagger is trained, calibrated, evaluated, traced."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import DataError
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.evaluation.evaluate import evaluate_archive
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.tasks.task import evaluation_loader
from beem_plugin.tasks.token_classification import entities, entity_scores, run_policy
from beem_plugin.training.train import train_model
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
    found = evaluate_archive(archive, str(tagger / "eng.testa"))
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
        policy.bind(model.exit_layers, model.num_labels)
        model.exit_policy = policy
        found = evaluate_archive(archive, data)
        decisions = replay(policy, trace)
        assert torch.bincount(decisions.exits - 1, minlength=3).tolist() == found["exit_histogram"], config
        right = (decisions.predictions == trace.labels).double().mean()
        assert float(right) == found["accuracy"], config


def test_batches_give_what_single_sentences_give(tagger: Path) -> None:
    archive = load_archive(tagger / "run" / "model.tar.gz")
    instances = archive.validation_dataset_reader.read(str(tagger / "eng.testa"))
    one, many = ({}, {})
    for size, found in ((1, one), (7, many)):
        for batch in evaluation_loader(archive, instances, size):
            exits, tags = run_policy(archive.model, batch)  # type: ignore[arg-type]
            for row, index in enumerate(batch["index"].tolist()):
                found[index] = (int(exits[row]), tags[row][batch["words"][row]].tolist())
    assert one == many


def test_predictions_and_wrong_tags(tagger: Path, tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    run("evaluate", str(tagger / "run"), str(tagger / "eng.testa"), "--predictions-output-file", str(lines))
    first = json.loads(lines.read_text().splitlines()[0])
    assert len(first["tags"]) == len(first["words"]) == len(first["gold_tags"]) and first["exit"] in (1, 2, 3)
    (tmp_path / "bad").write_text("a NN O\nfilm NN B-FILM\n")
    reader = load_archive(tagger / "run" / "model.tar.gz").dataset_reader
    with pytest.raises(DataError, match="bad:2: tag: found 'B-FILM', allowed: "):
        reader.read(str(tmp_path / "bad"))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["B-A", "I-A", "O", "I-B"], {("A", 0, 1), ("B", 3, 3)}),
        (["I-A", "I-B", "B-B"], {("A", 0, 0), ("B", 1, 1), ("B", 2, 2)}),
        (["S-A", "B-A", "E-A", "I-A"], {("A", 0, 0), ("A", 1, 2), ("A", 3, 3)}),
    ],
)
def test_entities_are_those_of_seqeval(tags: list[str], expected: set[tuple[str, int, int]]) -> None:
    assert entities(tags) == expected


def test_scores_are_micro_averaged() -> None:
    gold, found = [["B-A", "O", "B-B"], ["B-A"]], [["B-A", "B-B", "B-B"], ["O"]]
    assert entity_scores(gold, found) == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3})
