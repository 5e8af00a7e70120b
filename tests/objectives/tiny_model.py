"""A tiny multi-exit network, and a few steps of training that tell which of its parameters move."""

from __future__ import annotations

from typing import Any

import torch

from beem_plugin.data import Vocabulary
from beem_plugin.models import Model, MultiExitClassifier

BERT = {
    "model_type": "bert",
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


def tiny_model(objective: Any, labels: tuple[str, ...] = ("no", "yes"), **encoder: Any) -> MultiExitClassifier:
    torch.manual_seed(0)
    config = {
        "type": "multi_exit_classifier",
        "encoder": {"backbone": {"config": BERT}, "share_pooler": False, **encoder},
        "objective": objective,
    }
    model = Model.from_params(config, vocab=Vocabulary(labels), metric="accuracy", is_regression=False)
    assert isinstance(model, MultiExitClassifier)
    return model


def tiny_batch(num_labels: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(4, 20, (6, 5), generator=generator),
        "attention_mask": torch.ones(6, 5, dtype=torch.int64),
        "label": torch.arange(6) % num_labels,
    }


def moved_in(model: MultiExitClassifier, steps: list[int], total_steps: int = 4, label: int | None = None) -> set[str]:
    """Trains through these steps; returns the parts that moved: `backbone`, `exit 1`, `gate`, `objective`, ..."""
    batch = tiny_batch()
    if label is not None:
        batch["label"] = torch.full_like(batch["label"], label)
    model.train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    for step in steps:
        model.start_step(step, total_steps)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return {part(name) for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def part(name: str) -> str:
    words = name.split(".")
    if words[:2] == ["encoder", "exits"]:
        return f"exit {int(words[2]) + 1}"
    if words[:2] == ["encoder", "signal_modules"]:
        return words[2]
    return words[1] if words[0] == "encoder" else words[0]


def loss_falls(model: MultiExitClassifier, steps: int = 25) -> bool:
    """Whether the loss of evaluation is smaller after some training on six samples than before."""
    batch = tiny_batch()
    with torch.no_grad():
        before = float(model.eval()(**batch)["loss"])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    model.train()
    for step in range(steps):
        model.start_step(step, steps)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        return float(model.eval()(**batch)["loss"]) < before - 0.01
