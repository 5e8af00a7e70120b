"""Exit decisions as JSON records."""

from __future__ import annotations

from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.vocabulary import Vocabulary


def decision_records(decisions: ExitDecisions, vocab: Vocabulary) -> list[dict[str, Any]]:
    """
    One record per sample: `label` (the label's name) and `probabilities` (in the order of `vocab`); for a regression,
    `value`.
    """
    predictions = decisions.predictions.tolist()
    if vocab.is_regression:
        return [{"value": value} for value in predictions]
    probabilities = decisions.log_probabilities.exp().tolist()
    return [
        {"label": vocab.label_name(label), "probabilities": row}
        for label, row in zip(predictions, probabilities, strict=True)
    ]
