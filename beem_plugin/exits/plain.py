"""
One sample as plain numbers. A tensor of one element costs a hundred times what a number costs; at batch size 1 on a CPU
the rules would take a tenth of a small layer's time. A rule that is written with what is here, and with arithmetic and
comparisons, is stepped with tensors or with numbers by the same code.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch


class PlainSignals:
    """
    What one exit says about one sample: `ExitSignals` with a number wherever that has a tensor `(1,)`, and a list where
    it has one `(1, labels)`. In double precision, computed by the same formulas.

    # Parameters

    logits : `list[float]`
    """

    def __init__(self, logits: list[float]) -> None:
        self.logits = logits

    def __len__(self) -> int:
        return 1

    def flags(self, value: bool) -> bool:
        return value

    @cached_property
    def log_probabilities(self) -> list[float]:
        highest = max(self.logits)
        below = [logit - highest for logit in self.logits]
        log_sum = math.log(sum(map(math.exp, below)))
        return [value - log_sum for value in below]

    @property
    def output(self) -> list[float]:
        return self.logits if len(self.logits) == 1 else self.log_probabilities

    @cached_property
    def probabilities(self) -> list[float]:
        return [math.exp(value) for value in self.log_probabilities]

    @cached_property
    def prediction(self) -> int | float:
        if len(self.logits) == 1:
            return self.logits[0]
        return self.log_probabilities.index(max(self.log_probabilities))

    @cached_property
    def confidence(self) -> float:
        return math.exp(max(self.log_probabilities))

    @cached_property
    def entropy(self) -> float:
        return -sum(p * value for p, value in zip(self.probabilities, self.log_probabilities) if p > 0)

    @cached_property
    def margin(self) -> float:
        second, first = sorted(self.probabilities)[-2:]
        return first - second


RULE = ("start", "update", "step", "passes", "output", "score")


def is_of_the_rule(policy: object, attribute: str) -> bool:
    """Whether `attribute` was written for the rule that `policy` follows: no subclass has changed the rule since."""

    def place(name: str) -> int:
        return next((at for at, kind in enumerate(type(policy).__mro__) if name in vars(kind)), 1000)

    return all(place(attribute) <= place(name) for name in RULE)


def where(condition: Any, this: Any, other: Any) -> Any:
    """`torch.where`, or a choice between two numbers."""
    if isinstance(condition, bool):
        return this if condition else other
    return torch.where(condition, this, other)


def same_for_all(like: Any, value: bool) -> Any:
    """`(batch,)` bool of the batch size of `like`, or a bool where that is a number."""
    return torch.full_like(like, value, dtype=torch.bool) if isinstance(like, torch.Tensor) else value
