"""What samples were given when they left, as JSON has it."""

from __future__ import annotations

from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.vocabulary import Vocabulary


def answers(decisions: ExitDecisions, vocab: Vocabulary) -> list[dict[str, Any]]:
    """For each sample `label`, its name, and `probabilities` in the vocabulary's order; `value` of a regression."""
    given = decisions.predictions.tolist()
    if vocab.is_regression:
        return [{"value": value} for value in given]
    probabilities = decisions.log_probabilities.exp().tolist()
    return [
        {"label": vocab.label_name(label), "probabilities": row}
        for label, row in zip(given, probabilities, strict=True)
    ]
