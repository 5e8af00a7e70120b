"""Of a grid's settings, the one that is best on validation data. Test data are never asked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from beem_plugin.comparison.ablation.rows import Row


def keep_best(rows: Sequence[Row], early_exit_on_validation: Callable[[Row], list[float]]) -> list[Row]:
    """
    The rows, but of each family of candidates one, which has the others' scores in `settings` and their errors.

    `early_exit_on_validation` gives a row's metric with early exit on the validation data, one number a seed. It
    decides between settings whose trainings are equally good: those that differ in the exit policy only share one. The
    first one wins a tie.
    """
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.variant.is_candidate:
            families.setdefault(row.variant.family, []).append(row)
    best = {name: best_of(members, early_exit_on_validation) for name, members in families.items()}
    return [row for row in rows if not row.variant.is_candidate or best[row.variant.family] is row]


def best_of(rows: Sequence[Row], early_exit_on_validation: Callable[[Row], list[float]]) -> Row:
    scores = [median_score(row) for row in rows]
    known = [score for score in scores if score is not None]
    leading = [row for row, score in zip(rows, scores) if row.results and (not known or score == max(known))]
    early: dict[str, float] = {}
    if len(leading) > 1:
        for row in leading:
            values = early_exit_on_validation(row)
            early[row.name] = statistics.median(values) if values else 0.0
    chosen = max(leading, key=lambda row: early.get(row.name, 0.0)) if leading else rows[0]
    for row, score in zip(rows, scores):
        entry = {"setting": row.variant.setting, "validation_score": score, "is_chosen": row is chosen}
        if row.name in early:
            entry["early_exit_on_validation"] = early[row.name]
        chosen.settings.append(entry)
    chosen.errors = [error if row is chosen else f"{row.name}: {error}" for row in rows for error in row.errors]
    return chosen


def median_score(row: Row) -> float | None:
    spread = row.spread("validation_score")
    return None if spread is None else spread.median
