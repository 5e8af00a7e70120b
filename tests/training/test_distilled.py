"""Distillation from an archive, against probabilities computed with the loaded teacher."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.models import MultiExitClassifier
from beem_plugin.objectives import Objective
from beem_plugin.training.train import train_model
from tests.objectives.tiny_model import tiny_batch, tiny_model
from tests.tiny_project import write_backbone
from tests.training.configs import read_metrics
from tests.training.staged_configs import MODEL, staged
from tests.training.test_optimization import params


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    train_model(params(model=MODEL, trainer__num_epochs=1), folder / "run")
    return folder / "run" / "model.tar.gz"


def objective_of(teacher: Path, **keys: Any) -> Any:
    return Objective.from_params({"type": "distilled", "teacher": str(teacher), **keys})


def student(objective: Any, layers: int = 3) -> MultiExitClassifier:
    """Layers of the teacher's size, which has three, with exits at the last two."""
    backbone = {**MODEL["encoder"]["backbone"], "num_layers": layers}
    model = tiny_model("final_exit", ("low", "high"), exit_layers=[layers - 1, layers], backbone=backbone)
    objective.bind(model.encoder.exit_layers, 2)
    objective.start_training(Vocabulary(["low", "high"]), None)
    model.objective = objective
    return model


def test_the_loss_by_hand(teacher: Path) -> None:
    model = student(objective_of(teacher, weight=0.25, temperature=3.0))
    batch = tiny_batch()
    batch["label"][:2] = -1
    with torch.no_grad():
        found = model.eval()(**batch)
    master = load_archive(teacher).model
    with torch.no_grad():
        target = (master(**{**batch, "label": None})["logits"][:, -1] / 3).softmax(-1)
    terms = []
    for row in range(6):
        for exit_index in range(2):
            q = (found["logits"][row, exit_index] / 3).softmax(-1)
            terms.append(9 * sum(float(p) * (float(p.log()) - float(x.log())) for p, x in zip(target[row], q)))
    cross_entropy = torch.nn.functional.cross_entropy(
        found["logits"][2:].flatten(0, 1), batch["label"][2:].repeat_interleave(2)
    )
    expected = 0.75 * float(cross_entropy) + 0.25 * sum(terms) / len(terms)
    assert float(found["loss"]) == pytest.approx(expected, rel=1e-4)
    assert float(found["distillation"]) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    summed = student(objective_of(teacher, temperature=3.0, reduction="sum"))
    summed.load_state_dict(model.state_dict())
    both = [float(one.eval()(**batch)["distillation"]) for one in (model, summed)]
    assert both[1] == pytest.approx(2 * both[0], rel=1e-4)


@pytest.mark.parametrize(("layers", "pairs"), [(3, [(2, 2), (3, 3)]), (2, [(1, 2), (2, 3)])])
def test_hidden_states_at_the_same_relative_depth(teacher: Path, layers: int, pairs: list[tuple[int, int]]) -> None:
    model = student(objective_of(teacher, hidden_states_weight=2.0), layers).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = tiny_batch()
    batch["attention_mask"][:, 3:] = 0
    with_hidden = model(**batch)
    master: Any = load_archive(teacher).model
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        states = {}
        for encoder in (model.encoder, master.encoder):
            state, rows = encoder.embed(inputs), []
            for layer in range(1, encoder.backbone.num_layers + 1):
                state = encoder.backbone.layer(layer, state)
                rows.append(state.hidden_states[:, :3])
            states[encoder] = rows
    distances = [
        float((states[model.encoder][own - 1] - states[master.encoder][other - 1]).square().mean())
        for own, other in pairs
    ]
    assert float(with_hidden["hidden_distance"]) == pytest.approx(sum(distances) / 2, rel=1e-4)
    with_hidden["loss"].backward()
    assert all(parameter.grad is None for parameter in model.objective._loaded[0].parameters())  # type: ignore[union-attr]


def test_a_student_trains_and_its_archive_needs_no_teacher(teacher: Path, tmp_path: Path) -> None:
    objective = {"type": "distilled", "teacher": str(teacher), "hidden_states_weight": 0.1}
    model = {**MODEL, "objective": objective}
    train_model(params(model=model, trainer__num_epochs=2), tmp_path / "run")
    metrics = read_metrics(tmp_path / "run")
    assert metrics["training_loss"] > 0
    with tarfile.open(teacher) as large, tarfile.open(tmp_path / "run" / "model.tar.gz") as small:
        sizes = [{m.name: m.size for m in archive.getmembers()} for archive in (large, small)]
    weights = next(name for name in sizes[0] if name.startswith("weights"))
    assert sizes[1][weights] == sizes[0][weights]
    moved = tmp_path / "moved.tar.gz"
    (tmp_path / "run" / "model.tar.gz").rename(moved)
    archive = load_archive(moved, overrides={"model.objective.teacher": "gone"})
    assert float(archive.model(**tiny_batch())["loss"]) > 0


def test_a_stage_may_distil(teacher: Path, tmp_path: Path) -> None:
    stages = [{"name": "plain"}, {"name": "taught", "objective": {"type": "distilled", "teacher": str(teacher)}}]
    train_model(staged(stages), tmp_path / "run")
    assert "training_loss" in read_metrics(tmp_path / "run")
    stages[1]["objective"] = {"type": "distilled", "teacher": "nowhere.tar.gz"}
    with pytest.raises(ConfigurationError, match=r"stages\.1.*teacher: found no nowhere.tar.gz"):
        train_model(staged(stages), tmp_path / "other")


class Reader:
    """A stand-in for a reader's tokenizer."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        from transformers import AutoTokenizer

        self.model_name = folder.name
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        if extra:
            self.tokenizer.add_tokens([extra])


def test_teachers_that_do_not_fit_are_named(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of(teacher)
    with pytest.raises(ConfigurationError, match="has the labels .*allowed: .*'up'"):
        objective.start_training(Vocabulary(["up", "down"]), None)
    import beem_plugin.training.distilled as module

    archive = load_archive(teacher)
    archive.dataset_reader.tokenizer = Reader(write_backbone(tmp_path))
    monkeypatch.setattr(module, "load_archive", lambda path: archive)
    objective.start_training(Vocabulary(["low", "high"]), Reader(tmp_path))
    with pytest.raises(ConfigurationError, match="has another tokenizer"):
        objective.start_training(Vocabulary(["low", "high"]), Reader(tmp_path, extra="new"))


@pytest.mark.parametrize(
    "keys", [{"weight": 1.5}, {"temperature": 0.0}, {"direction": "up"}, {"hidden_states_weight": -1.0}]
)
def test_options_out_of_range_are_named(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(keys))):
        objective_of(Path("x"), **keys)
