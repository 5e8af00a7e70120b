"""A tiny captioner and a tiny Karpathy split on disk, for the tests of what stands around a captioning model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 220), "white": (250, 250, 250)}


@Model.register("tiny_captioner", exist_ok=True)
class TinyCaptioner(Model):
    """
    The mean colours of an image's quarters, and a recurrent decoder. Under the policy "final" every word leaves at the
    last of two exits, under any other policy the exits alternate.
    """

    default_predictor = "captioner"
    default_evaluation = "captions"
    exit_layers = [1, 3]

    def __init__(
        self, vocab: Vocabulary, tokenizer: CaptionTokenizer, exit_policy: ExitPolicy | None = None, size: int = 32
    ) -> None:
        super().__init__(vocab)
        self.start, self.end = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.pool = torch.nn.AdaptiveAvgPool2d(2)
        self.image = torch.nn.Sequential(torch.nn.Linear(12, size), torch.nn.Tanh())
        self.words = torch.nn.Embedding(tokenizer.vocab_size, size)
        self.decoder = torch.nn.GRU(size, size, batch_first=True)
        self.output = torch.nn.Linear(size, tokenizer.vocab_size)
        self.exit_policy = exit_policy if exit_policy is not None else ExitPolicy.from_params({"type": "final"})
        self.exit_policy.bind(self.exit_layers, tokenizer.vocab_size)
        self.right = self.seen = 0

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    def _state(self, batch: dict[str, Tensor], rows: int) -> Tensor:
        if "pixel_values" not in batch:
            return torch.zeros(1, rows, self.decoder.hidden_size)
        states = self.image(self.pool(batch["pixel_values"]).flatten(1)).unsqueeze(0)
        return states[:, batch["image_of_row"]] if "image_of_row" in batch else states

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        ids, mask = batch["input_ids"], batch["attention_mask"][:, 1:].bool()
        hidden, _ = self.decoder(self.words(ids[:, :-1]), self._state(batch, len(ids)))
        logits = self.output(hidden)
        target = ids[:, 1:]
        self.right += int(((logits.argmax(-1) == target) & mask).sum())
        self.seen += int(mask.sum())
        return {"loss": torch.nn.functional.cross_entropy(logits[mask], target[mask])}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        value = {"token_accuracy": self.right / max(self.seen, 1)}
        if reset:
            self.right = self.seen = 0
        return value

    def generate(
        self,
        batch: dict[str, Tensor],
        max_length: int | None = None,
        num_beams: int | None = None,
        policy: ExitPolicy | None = None,
    ) -> list[GeneratedCaption]:
        policy = policy if policy is not None else self.exit_policy
        rows = len(batch["input_ids"])
        state = self._state(batch, rows)
        last = torch.full((rows, 1), self.start)
        captions = [GeneratedCaption() for _ in range(rows)]
        for position in range(max_length or 12):
            hidden, state = self.decoder(self.words(last), state)
            values, last = self.output(hidden)[:, -1].log_softmax(-1).max(-1, keepdim=True)
            for caption, token, value in zip(captions, last[:, 0].tolist(), values[:, 0].tolist()):
                if self.end not in caption.tokens:
                    caption.tokens.append(token)
                    caption.exits.append(1 + position % 2 if policy.leaves_early else 2)
                    caption.log_probabilities.append(value)
                    caption.score += value
        return captions


def captioned_colours(folder: Path, counts: dict[str, int] | None = None) -> Path:
    """One-coloured images with two captions each, in the form of a Karpathy split; returns its JSON file."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for split, count in (counts or {"train": 12, "restval": 4, "val": 4, "test": 4}).items():
        for number in range(count):
            colour = list(COLOURS)[number % len(COLOURS)]
            name = f"{split}_{number}.png"
            Image.new("RGB", (20 + number, 24), COLOURS[colour]).save(images / name)
            raws = [f"A {colour} picture .", f"Here, everything is {colour}!"]
            entries.append(
                {
                    "filename": name,
                    "imgid": len(entries),
                    "split": split,
                    "sentences": [
                        {"raw": raw, "tokens": raw.lower().replace(",", "").replace("!", "").replace(".", "").split()}
                        for raw in raws
                    ],
                }
            )
    path = folder / "dataset_colours.json"
    path.write_text(json.dumps({"dataset": "colours", "images": entries}), encoding="utf-8")
    return path


def train_config(reader: dict[str, Any], epochs: int = 15) -> dict[str, Any]:
    """A config for `allennlp train` of the tiny captioner."""
    return {
        "dataset_reader": reader,
        "train_data_path": "train",
        "validation_data_path": "val",
        "model": {"type": "tiny_captioner"},
        "data_loader": {"batch_size": 8},
        "trainer": {
            "num_epochs": epochs,
            "optimizer": {"type": "adam", "lr": 0.02},
            "cuda_device": -1,
            "validation_metric": "+token_accuracy",
        },
    }
