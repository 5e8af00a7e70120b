"""A backbone whose vocabulary is smaller than the tokenizer's is refused by both sizes; a larger one is fine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data import TextEncoder
from beem_plugin.training.train import train_model
from tests.tiny_project import run, write_backbone

WORDS = 22
"""In the vocabulary of the tiny project, special tokens included."""


def config(data: Path, tokenizer: Path, vocab_size: int) -> dict[str, Any]:
    shape = {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 64,
    }
    return {
        "dataset_reader": {"type": "text_classification", "tokenizer": {"model_name": str(tokenizer)}},
        "train_data_path": str(data),
        "model": {"type": "multi_exit_classifier", "encoder": {"backbone": {"config": shape}}},
        "data_loader": {"batch_size": 4},
        "trainer": {"num_epochs": 1, "cuda_device": -1},
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    rows = [{"text": "the film was good", "label": "yes"}, {"text": "a bad story", "label": "no"}] * 4
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_vocabulary_that_is_too_small_is_refused_before_training(tmp_path: Path, data: Path) -> None:
    tokenizer = write_backbone(tmp_path / "tokenizer")
    message = rf"backbone: found a vocabulary of {WORDS - 1} tokens.* up to {WORDS - 1}; allowed: .* {WORDS} or more"
    with pytest.raises(ConfigurationError, match=message):
        train_model(Params(config(data, tokenizer, WORDS - 1)), tmp_path / "small")
    for number, size in enumerate((WORDS, WORDS + 40)):
        train_model(Params(config(data, tokenizer, size)), tmp_path / f"run_{number}")


def test_tokens_that_were_added_count(tmp_path: Path) -> None:
    folder = write_backbone(tmp_path / "tokenizer")
    assert TextEncoder(str(folder)).vocab_size == WORDS
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens(["brilliant", "dreadful"])
    tokenizer.save_pretrained(str(folder))
    assert TextEncoder(str(folder)).vocab_size == WORDS + 2


def test_an_archive_with_another_tokenizer_is_refused(tmp_path: Path, data: Path) -> None:
    tokenizer = write_backbone(tmp_path / "tokenizer")
    train_model(Params(config(data, tokenizer, WORDS)), tmp_path / "run")
    folder = tmp_path / "run" / "tokenizer"
    changed = AutoTokenizer.from_pretrained(str(folder))
    changed.add_tokens(["brilliant"])
    changed.save_pretrained(str(folder))
    refused = run("evaluate", str(tmp_path / "run"), str(data), check=False)
    assert refused.returncode == 1 and f"found a vocabulary of {WORDS} tokens" in refused.stderr
