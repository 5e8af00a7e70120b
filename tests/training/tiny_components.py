"""A reader, a model and callbacks that are small enough to train in a test. Also imported by `--include-package`."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import torch
from torch import Tensor

from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.models.model import Model
from beem_plugin.training.callbacks.callback import TrainerCallback


@DatasetReader.register("tiny")
class TinyReader(DatasetReader):
    """Makes up instances: the source "train:37" means 37 of them, the same whenever it is read."""

    label_names = ["low", "high"]

    def __init__(self) -> None:
        pass

    def read(self, source: str) -> list[Instance]:
        generator = random.Random(source)
        instances = []
        for number in range(int(source.split(":")[1])):
            tokens = [generator.randrange(1, 20) for _ in range(generator.randrange(2, 6))]
            label = "high" if sum(tokens) / len(tokens) + generator.gauss(0, 3) > 10 else "low"
            encoding = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
            instances.append(Instance(fields={}, encoding=encoding, label=label, id=number))
        return instances


@Model.register("tiny")
class TinyModel(Model):
    def __init__(self, vocab: Vocabulary, dropout: float = 0.0) -> None:
        super().__init__(vocab)
        self.embedding = torch.nn.Embedding(20, 6)
        self.dropout = torch.nn.Dropout(dropout)
        self.encoder = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Dropout(dropout))
        self.classifier = torch.nn.Linear(6, vocab.num_labels)
        self.right, self.seen = 0, 0

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        mask = batch["attention_mask"].unsqueeze(-1).float()
        mean = (self.embedding(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
        logits = self.classifier(self.encoder(self.dropout(mean))).unsqueeze(1)
        if self.training:
            self.update_metrics(logits, batch["label"])
        return {"logits": logits, "loss": torch.nn.functional.cross_entropy(logits[:, 0], batch["label"])}

    def update_metrics(self, logits: Tensor, label: Tensor) -> None:
        self.right += int((logits[:, -1].argmax(-1) == label).sum())
        self.seen += len(label)

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        metrics = {"accuracy": self.right / self.seen, "seen": float(self.seen)} if self.seen else {}
        if reset:
            self.right, self.seen = 0, 0
        return metrics

    def metric_state(self) -> dict[str, Any]:
        return {"right": self.right, "seen": self.seen}

    def load_metric_state(self, state: dict[str, Any]) -> None:
        self.right, self.seen = state["right"], state["seen"]


@TrainerCallback.register("kill")
class Kill(TrainerCallback):
    """Sends SIGKILL to its own process after the batch that `KILL_AT` names, "epoch:batch"."""

    def on_batch(self, trainer: Any, *args: Any, epoch: int, batch_number: int, **kwargs: Any) -> None:
        if os.environ.get("KILL_AT") == f"{epoch}:{batch_number}":
            os.kill(os.getpid(), signal.SIGKILL)


@TrainerCallback.register("interrupt")
class Interrupt(TrainerCallback):
    """Presses Ctrl-C in the middle of an epoch, and notes that `on_end` was called."""

    def __init__(self, serialization_dir: str, epoch: int = 1) -> None:
        super().__init__(serialization_dir)
        self.epoch = epoch

    def on_batch(self, trainer: Any, *args: Any, epoch: int, batch_number: int, **kwargs: Any) -> None:
        if epoch == self.epoch and batch_number == 2:
            raise KeyboardInterrupt

    def on_end(self, trainer: Any, metrics: dict[str, Any] | None = None, **kwargs: Any) -> None:
        assert metrics is not None
        metrics["calibrated"] = True


@TrainerCallback.register("fail_at_end")
class FailAtEnd(TrainerCallback):
    def on_end(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("the callback failed")


@TrainerCallback.register("record")
class Record(TrainerCallback):
    """Keeps the names of the calls it gets, and the learning rate of every step."""

    calls: list[str] = []
    rates: list[float] = []

    def on_start(self, trainer: Any, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer)
        type(self).calls, type(self).rates = ["start"], []

    def on_backward(self, trainer: Any, batch_outputs: dict[str, Any], backward_called: bool, **kwargs: Any) -> bool:
        self.calls.append("backward")
        return False

    def on_batch(self, trainer: Any, batch_inputs: Any, batch_outputs: Any, *args: Any, **kwargs: Any) -> None:
        assert len(batch_inputs) == len(batch_outputs)
        self.calls.append("batch")
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])

    def on_epoch(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append("epoch")

    def on_end(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append("end")
