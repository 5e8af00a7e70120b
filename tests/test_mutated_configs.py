"""A config that was changed at random trains, or is refused in one line: never a traceback."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_project import run, sentences

MUTATIONS = 500
PARTS = 10
VALUES: tuple[Any, ...] = (
    float("nan"), float("inf"), float("-inf"), int("9" * 400), -int("9" * 400), 1e308, -1, 0, 1, 2.5, True, False,
    None, "", "x", "x" * 100_000, "\ud800", "\x00", "1e-3", "../..", [], {}, [None], [[]], [{}], {"type": None},
    {"type": "x"}, {"type": {}}, {"": 0}, {"type": "os.path"}, [1, "a"], [float("nan")],
)  # fmt: skip


@pytest.fixture(scope="module")
def config(tiny_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data = tmp_path_factory.mktemp("mutated") / "data.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in sentences(24, seed=1)))
    shape = {
        "model_type": "bert", "vocab_size": 22, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 8, "max_position_embeddings": 32, "hidden_dropout_prob": 0.1, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "initializer_range": 0.02,
    }  # fmt: skip
    return {
        "random_seed": 1,
        "numpy_seed": 2,
        "pytorch_seed": 3,
        "dataset_reader": {
            "type": "text_classification",
            "tokenizer": {"model_name": tiny_environment["BEEM_BACKBONE"], "max_length": 16},
            "text_fields": ["text"],
            "label_field": "label",
            "holdout_fraction": 0.3,
            "test_fraction": 0.2,
            "label_map": {"x": "y"},
        },
        "train_data_path": f"{data}[fit]",
        "validation_data_path": f"{data}[holdout]",
        "test_data_path": f"{data}[test]",
        "evaluate_on_test": True,
        "vocabulary": {"type": "from_instances"},
        "model": {
            "type": "multi_exit_classifier",
            "encoder": {"backbone": {"config": shape}, "pooler": {"type": "bert_pooler", "pooling": "mean"}},
            "objective": {"type": "weighted_distillation"},
            "exit_policy": {"type": "beem", "weights": {"type": "accuracy"}, "thresholds": {"type": "error_rate"}},
        },
        "data_loader": {"type": "bucket", "batch_size": 8, "padding_noise": 0.1},
        "trainer": {
            "num_epochs": 1,
            "patience": 2,
            "grad_norm": 1.0,
            "cuda_device": -1,
            "validation_metric": "+accuracy",
            "optimizer": {"type": "adamw", "lr": 1e-3, "parameter_groups": [[["bias"], {"weight_decay": 0.0}]]},
            "learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 2},
            "callbacks": [{"type": "calibrate_exits"}],
        },
    }


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a config with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutated(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 1, 2))):
        container, key = rng.choice(list(places(changed)))
        kind = rng.random()
        if kind < 0.08:
            del container[key]
        elif kind < 0.16 and isinstance(container, dict):
            container[rng.choice(("typo", "", "type", "0"))] = copy.deepcopy(rng.choice(VALUES))
        elif kind < 0.24:
            container[key] = [container[key]]
        else:
            container[key] = copy.deepcopy(rng.choice(VALUES))
    return changed


@pytest.mark.parametrize("part", range(PARTS))
def test_mutations(part: int, config: dict[str, Any], tmp_path: Path) -> None:
    rng = random.Random(part)
    path = tmp_path / "mutated.json"
    for number in range(MUTATIONS // PARTS):
        path.write_text(json.dumps(mutated(config, rng)))
        run_dir = tmp_path / f"run_{number}"
        result = run("train", str(path), "-s", str(run_dir), "--dry-run", check=False)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == result.returncode <= 1, path.read_text()[:3000]
        assert "Traceback" not in result.stderr
        assert result.returncode == 0 or not run_dir.exists()
