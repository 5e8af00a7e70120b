"""The scores of a rule whose state holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from beem_plugin.calibration.thresholds import ScoreTable
from beem_plugin.calibration.trace import ExitTrace

if TYPE_CHECKING:
    from beem_plugin.exits.policy import ExitPolicy


def stepped_table(policy: ExitPolicy, trace: ExitTrace) -> ScoreTable:
    """
    `policy.score` and the label given at every exit, by stepping `policy` over all of them: larger scores pass, and one
    that equals the limit does.
    """
    state = policy.start(len(trace), trace.num_exits, "cpu")
    scores, predictions, confidences = [], [], []
    for exit_number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(exit_number)
        _, state = policy.step(exit_number, signals, state)
        scores.append(state["score"])
        predictions.append(policy.prediction(exit_number, signals, state))
        confidences.append(signals.confidence)
    return ScoreTable(
        scores=torch.stack(scores, 1),
        predictions=torch.stack(predictions, 1),
        confidences=torch.stack(confidences, 1),
        labels=trace.labels,
        exit_layers=trace.exit_layers,
        higher_is_surer=True,
        strict=False,
        metric=trace.metric,
    )
