"""Traces and score tables of the kind that a trained network gives, made from random numbers."""

from __future__ import annotations

import numpy as np
import torch

from beem_plugin.calibration.thresholds import ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policies import ExitPolicy


def make_trace(samples: int, num_exits: int = 6, num_labels: int = 2, seed: int = 0) -> ExitTrace:
    """Easy and hard samples; deeper exits are better; the errors of neighbouring exits are related."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_labels, samples)
    ease = np.clip(1.2 - 0.7 * generator.normal(size=samples), -0.3, 3)
    logits = np.zeros((samples, num_exits, num_labels), dtype=np.float32)
    noise = np.zeros((samples, num_labels))
    for column in range(num_exits):
        noise = 0.8 * noise + 0.6 * generator.normal(size=(samples, num_labels))
        logits[:, column] = 1.2 * noise
        logits[np.arange(samples), column, labels] += (0.3 + 2 * column / max(num_exits - 1, 1)) * ease
    return ExitTrace(torch.from_numpy(logits), torch.from_numpy(labels), meta={"source": "made up"})


def make_deepening_trace(samples: int, seed: int, num_exits: int = 8) -> ExitTrace:
    """
    Early exits share one weak feature, so they agree whether right or not; deep exits read a better one and are more
    confident. A score that accumulates agreement grows at every exit, most at those that carry no information.
    """
    generator = np.random.default_rng(seed)
    depth = np.arange(1, num_exits + 1) / num_exits
    deep = 1 / (1 + np.exp(-9 * (depth - 0.55)))
    labels = generator.integers(0, 2, samples)
    sign = 2 * labels - 1
    weak = 0.3 * sign + generator.normal(size=samples)
    strong = 1.2 * sign * (1 + 0.7 * generator.normal(size=samples)) + 0.8 * generator.normal(size=samples)
    evidence = weak[:, None] * (1 - deep) + strong[:, None] * deep
    evidence = (evidence + 0.25 * generator.normal(size=evidence.shape)) * np.linspace(0.35, 1.8, num_exits)
    logits = np.stack([-evidence, evidence], axis=-1).astype(np.float32)
    return ExitTrace(torch.from_numpy(logits), torch.from_numpy(labels))


def make_table(samples: int, num_exits: int = 6, seed: int = 0, policy: str = "max_probability") -> ScoreTable:
    trace = make_trace(samples, num_exits, seed=seed)
    rule = ExitPolicy.from_params({"type": policy, "thresholds": 0.5})
    rule.bind(trace.exit_layers, trace.num_labels)
    return rule.score_table(trace)


def random_table(seed: int, samples: int = 40, num_exits: int = 4, levels: int = 6, strict: bool = False) -> ScoreTable:
    """Scores with many ties, and -inf where the rule may not leave yet."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (samples, num_exits), generator=generator).double() / 4
    if seed % 3 == 0:
        scores[:, 0] = -torch.inf
    return ScoreTable(
        scores=scores,
        predictions=torch.randint(0, 3, (samples, num_exits), generator=generator),
        confidences=torch.rand(samples, num_exits, generator=generator).double(),
        labels=torch.randint(0, 3, (samples,), generator=generator),
        exit_layers=list(range(2, 2 * num_exits + 1, 2)),
        higher_is_more_confident=bool(seed % 2),
        strict=strict,
    )
