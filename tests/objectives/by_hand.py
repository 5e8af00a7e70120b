"""The arithmetic of the objectives once more, one number after the other, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from beem_plugin.exits.outputs import ExitOutputs

Array = np.ndarray


def softmax(logits: Sequence[float] | Array) -> Array:
    powers = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return powers / powers.sum()


def cross_entropy(logits: Sequence[float] | Array, label: int) -> float:
    return -math.log(softmax(logits)[label])


def kl(p: Array, q: Array) -> float:
    return sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p, q, strict=True))


def random_logits(samples: int = 5, exits: int = 4, labels: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(samples, exits, labels, generator=torch.Generator().manual_seed(seed)) * 2


def random_outputs(samples: int = 5, exits: int = 4, labels: int = 3, size: int = 6, seed: int = 0) -> ExitOutputs:
    """What a network could say, with every signal and extra that an objective reads, each a leaf with a gradient."""
    generator = torch.Generator().manual_seed(seed + 1)
    names = ("predicted_error", "halt", "gate")
    return ExitOutputs(
        random_logits(samples, exits, labels, seed).requires_grad_(),
        [torch.randn(samples, size, generator=generator).requires_grad_() for _ in range(exits)],
        {name: torch.rand(samples, exits, generator=generator).requires_grad_() for name in names},
        {
            "imitated": [
                torch.randn(samples, exits - i, size, generator=generator).requires_grad_() for i in range(1, exits)
            ]
        },
    )


def rows(outputs: ExitOutputs, index: list[int]) -> ExitOutputs:
    """The samples of `outputs` at `index`."""
    return ExitOutputs(
        outputs.logits[index],
        [value[index] for value in outputs.pooled],
        {name: value[index] for name, value in outputs.signals.items()},
        {name: [value[index] for value in values] for name, values in outputs.extras.items()},
    )
