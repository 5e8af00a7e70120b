"""Random traces of every awkward kind."""

from __future__ import annotations

import random

import torch

from beem_plugin.calibration.trace import ExitTrace

KINDS = ("smooth", "quantised", "degenerate", "saturated", "half", "tied")


def random_trace(rng: random.Random, num_exits: int | None = None, num_labels: int | None = None) -> ExitTrace:
    """A trace of a few samples, with all signals that any rule reads, in steps of 1/16."""
    exits = num_exits or rng.choice([1, 2, 2, 3, 5, 8, 12])
    labels = num_labels or rng.choice([2, 2, 3, 4, 7, 20])
    samples = rng.choice([1, 2, 9, 16])
    kind = rng.choice(KINDS)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    opinion = 2 * torch.randn(samples, 1, labels, generator=generator)
    doubt = torch.randn(samples, exits, labels, generator=generator)
    growing = torch.linspace(0.3, 2, exits)[:, None]  # (exits, 1): deeper exits are surer
    logits = opinion * growing + rng.choice([0.3, 1.0, 2.5]) * doubt
    if kind == "quantised":
        logits = logits.round()
    elif kind == "degenerate":
        constant = torch.rand(exits, generator=generator) < 0.5
        logits[:, constant] = torch.randn(labels, generator=generator)
    elif kind == "saturated":
        logits = torch.where(logits > 0, 1e4, -1e4)
    elif kind == "half":
        logits = (30 * logits).half().float()
    elif kind == "tied":
        logits = torch.zeros_like(logits).masked_fill(torch.rand(logits.shape, generator=generator) < 0.2, 3.0)
    truth = torch.randint(-1 if rng.random() < 0.2 else 0, labels, (samples,), generator=generator)
    sixteenths = torch.randint(0, 17, (4, samples, exits), generator=generator) / 16
    signals = dict(zip(("halt", "gate", "predicted_error", "similarity"), sixteenths, strict=True))
    signals["similarity"] = 2 * signals["similarity"] - 1
    # Where a word stands in its caption: the same at all exits.
    signals["position"] = torch.randint(0, 24, (samples, 1), generator=generator).float().expand(-1, exits)
    return ExitTrace(logits, truth, signals=signals)
