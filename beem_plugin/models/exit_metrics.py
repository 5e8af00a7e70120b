"""Metrics of the last and of each exit: the task's on samples; accuracy and perplexity on tokens of captions."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.metrics import METRICS, REGRESSION_METRICS, known_labels


class ExitMetrics:
    """
    Collects the predictions of all exits; computes the task's metrics for the last exit, and for every exit the
    accuracy, or of a regression all metrics, as `exit_<number>_<name>`. All predictions are stored (labels in one byte
    per sample and exit, in two with more than 127 labels), because metrics such as Matthews correlation are not means
    over samples. `metric` is a name of `beem_plugin.common.metrics`.
    """

    def __init__(self, metric: str, num_labels: int) -> None:
        self.metric = metric
        self.is_regression = metric in REGRESSION_METRICS
        labels = torch.int8 if num_labels <= 127 else torch.int16
        self.dtype = torch.float32 if self.is_regression else labels
        self.predictions: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds `(batch, exits, labels)` logits, or `(batch, exits, 1)` values, of samples with a known `label`."""
        known = known_labels(label)
        found = logits.detach()[known]
        predictions = found.squeeze(-1) if self.is_regression else found.argmax(-1)
        self.predictions.append(predictions.to("cpu", self.dtype))
        self.labels.append(label[known].to("cpu", self.dtype))

    def compute(self, reset: bool) -> dict[str, float]:
        """The metrics by name; empty if there are no samples."""
        if not self.labels:
            return {}
        predictions, labels = torch.cat(self.predictions), torch.cat(self.labels)
        self.predictions, self.labels = ([], []) if reset else ([predictions], [labels])
        if not len(labels):
            return {}
        if self.is_regression:  # double precision, as in the metrics of a trace of the same values
            predictions, labels = predictions.double(), labels.double()
        gold, columns = labels.numpy(), predictions.numpy().T
        of_exit = METRICS[self.metric if self.is_regression else "accuracy"]
        exits = {
            f"exit_{number}_{name}": value
            for number, column in enumerate(columns, 1)
            for name, value in of_exit(gold, column).items()
            if name not in REGRESSION_METRICS
        }
        return {**METRICS[self.metric](gold, columns[-1]), **exits}

    def state_dict(self) -> dict[str, Any]:
        return {"predictions": list(self.predictions), "labels": list(self.labels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.predictions, self.labels = list(state["predictions"]), list(state["labels"])


class TokenMetrics:
    """Stores sums over tokens, so that states of several processes, or of parts of an epoch, can be added."""

    def __init__(self, num_exits: int) -> None:
        self.num_exits = num_exits
        self.reset()

    def reset(self) -> None:
        self.tokens = 0
        self.correct = torch.zeros(self.num_exits, dtype=torch.float64)
        self.negative_log_likelihood = torch.zeros(self.num_exits, dtype=torch.float64)

    def update(self, predictions: Tensor, negative_log_likelihood: Tensor, target: Tensor) -> None:
        """Adds `(tokens, exits)` predictions and likelihoods of `(tokens,)` targets."""
        self.tokens += len(target)
        self.correct += (predictions == target.unsqueeze(1)).sum(0).double().cpu()
        self.negative_log_likelihood += negative_log_likelihood.double().sum(0).cpu()

    def compute(self, reset: bool) -> dict[str, float]:
        """
        `perplexity` and `token_accuracy` of the last exit, `exit_<i>_token_accuracy` and `exit_<i>_perplexity` of each;
        empty if there are no tokens.
        """
        if not self.tokens:
            return {}
        accuracy = (self.correct / self.tokens).tolist()
        # exp overflows above 709 nats, which happens only if training has diverged.
        perplexity = [math.exp(min(value, 700.0)) for value in (self.negative_log_likelihood / self.tokens).tolist()]
        if reset:
            self.reset()
        return {
            "perplexity": perplexity[-1],
            "token_accuracy": accuracy[-1],
            **{f"exit_{number}_token_accuracy": value for number, value in enumerate(accuracy, 1)},
            **{f"exit_{number}_perplexity": value for number, value in enumerate(perplexity, 1)},
        }

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({name: value for name, value in vars(self).items() if name != "num_exits"})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(copy.deepcopy(state))
