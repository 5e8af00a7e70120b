"""Accuracy and perplexity of each exit on the next token."""

import copy
import math
from typing import Any

import torch
from torch import Tensor


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
