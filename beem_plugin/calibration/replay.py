"""Applies policies to a trace: the exit of each sample, or the counts of many settings in one pass."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import cat_padded, prediction_of
from beem_plugin.exits.trace_interface import Trace

MAX_CACHED_BYTES = 2**30  # limit of the log-probabilities and probabilities that are cached for several policies
MAX_CELLS = 400
"""With more pairs of label and prediction than this, a sum over samples for each pair costs more than it saves."""


@dataclass
class Outcome:
    """The counts that metrics and speed-ups are computed from; a cell is a known label and a prediction."""

    exit_histogram: list[int]  # samples by exit
    labels: np.ndarray  # (cells,) int64, of a regression float64
    predictions: np.ndarray
    counts: np.ndarray  # (cells,) int64, samples of the cell, above 0


def outcome_of(exits: Tensor, predictions: Tensor, labels: Tensor, num_exits: int) -> Outcome:
    """The outcome of decisions: `(samples,)` 1-based exits, predictions, and labels, some of them unknown."""
    known = known_labels(labels).numpy()
    pairs = np.stack([labels.numpy()[known], predictions.numpy()[known]])
    cells, counts = np.unique(pairs, axis=1, return_counts=True)
    return Outcome(np.bincount(exits.numpy() - 1, minlength=num_exits).tolist(), cells[0], cells[1], counts)


def outcomes_of(table: ScoreTable, limits: np.ndarray) -> Iterator[Outcome]:
    """Of settings with the same scores and other oriented limits, `(settings, exits - 1)`; unknown labels only exit."""
    table = replace(table, scores=table.scores.masked_fill(table.scores.isnan(), -torch.inf))  # NaN passes no limit
    if table.is_regression:  # its values are too many for cells of a table
        for setting in limits:
            exits = table.exits(setting.tolist())
            yield outcome_of(exits, table.predictions_at(exits), table.labels, table.num_exits)
        return
    labels, predictions = table.labels.numpy(), table.predictions.numpy()
    known = labels >= 0
    width = int(predictions.max(initial=0)) + 1
    pairs = labels[known, None] * width + predictions[known]
    codes, numbers = np.unique(pairs, return_inverse=True)
    cells = np.full(predictions.shape, len(codes), dtype=np.int64)  # unknown labels in a last cell
    cells[known] = numbers.reshape(pairs.shape)
    shared = limits.shape[1] > 0 and bool((limits == limits[:, :1]).all())
    count = _along_path if shared and len(codes) <= MAX_CELLS else _one_by_one
    for histogram, counts in count(table, cells, len(codes), limits):
        found = np.flatnonzero(counts[:-1])
        yield Outcome(histogram.tolist(), codes[found] // width, codes[found] % width, counts[found])


def _along_path(
    table: ScoreTable, cells: np.ndarray, last: int, limits: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Histograms, and samples by cell, of settings with one limit for all exits."""
    path = ThresholdPath(table)
    points = path.point_of(limits[:, 0])
    exits = np.broadcast_to(np.arange(table.num_exits), cells.shape)
    by_exit, by_cell = (
        np.stack([path.sums((numbers == one).astype(np.int64))[points] for one in range(count)], axis=1)
        for numbers, count in ((exits, table.num_exits), (cells, last + 1))
    )
    yield from zip(by_exit, by_cell, strict=True)


def _one_by_one(
    table: ScoreTable, cells: np.ndarray, last: int, limits: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # One row per exit, from the last to the first, so that an earlier exit overwrites. Exit and cell are one
    # number, written once.
    width = last + 1
    kind = np.int32 if table.num_exits * width < 2**31 else np.int64
    scores = np.ascontiguousarray(table.scores[:, :-1].double().numpy().T)
    codes = (cells.T + width * np.arange(table.num_exits)[:, None]).astype(kind, order="C")
    for setting in limits:
        code = codes[-1].copy()
        for column in range(len(scores) - 1, -1, -1):
            limit = setting[column]
            passes = scores[column] > limit if table.strict else scores[column] >= limit
            np.copyto(code, codes[column], where=passes)
        counts = np.bincount(code, minlength=table.num_exits * width).reshape(table.num_exits, width)
        yield counts.sum(1), counts.sum(0)


@dataclass
class ExitDecisions:
    """The exit and the output of each sample."""

    exits: Tensor  # (samples,) int64, from 1
    predictions: Tensor  # (samples,) int64; of a regression float64; of a tagger (samples, tokens), -1 without a tag
    log_probabilities: Tensor  # (samples, labels), or a regression's values; no column where they are not known
    scores: Tensor | None  # (samples,) the policy's score at the sample's exit; `None` if it has none

    @classmethod
    def of_output(cls, exits: Tensor, output: Tensor, scores: Tensor | None, per_token: bool) -> ExitDecisions:
        """From `(samples, labels)` log-probabilities, or with `per_token` from `(samples, tokens)` labels."""
        if per_token:
            return cls(exits, output.long(), output[:, :0], scores)
        return cls(exits, prediction_of(output), output, scores)

    @classmethod
    def join(cls, parts: Sequence[ExitDecisions]) -> ExitDecisions:
        """The samples of one or more parts, in their order."""
        scores = [part.scores for part in parts if part.scores is not None]
        return cls(
            torch.cat([part.exits for part in parts]),
            cat_padded([part.predictions for part in parts]),
            torch.cat([part.log_probabilities for part in parts]),
            torch.cat(scores) if len(scores) == len(parts) else None,
        )

    def __getitem__(self, rows: Tensor | slice) -> ExitDecisions:
        """The samples at `rows`, `(selected,)` int64 or a slice, in that order."""
        scores = None if self.scores is None else self.scores[rows]
        return ExitDecisions(self.exits[rows], self.predictions[rows], self.log_probabilities[rows], scores)


def replay(policy: ExitPolicy, trace: Trace) -> ExitDecisions:
    """
    Steps `policy`, bound to the trace's exits, over all exits and samples at once: each sample is processed
    independently, so this equals removing those that exited. Policies that adapt start over, and learn sample by
    sample.
    """
    _prepare(policy, trace)
    samples = len(trace)
    state = policy.start(samples, trace.num_exits, "cpu")
    exits = torch.zeros(samples, dtype=torch.int64)
    predictions = torch.zeros(samples, dtype=torch.float64 if trace.num_labels == 1 else torch.int64)
    output = torch.zeros(samples, trace.num_labels if trace.has_logits else 0, dtype=torch.float64)
    scores: Tensor | None = None
    decided = policy.exits_on(trace)
    for exit_number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(exit_number)
        leaves, state = policy.checked_step(exit_number, signals, state)
        if decided is not None:
            leaves = decided == exit_number
        if exit_number == trace.num_exits:
            leaves = torch.ones_like(leaves)
        new = leaves & (exits == 0)
        exits[new] = exit_number
        predictions[new] = policy.prediction(exit_number, signals, state)[new]
        if trace.has_logits:
            output[new] = policy.output(exit_number, signals, state)[new]
        score = policy.score(state)
        if score is not None:
            scores = torch.zeros(samples, dtype=torch.float64) if scores is None else scores
            scores[new] = score[new].to(scores.dtype)
    return ExitDecisions(exits, predictions, output, scores)


def replay_many(policies: Sequence[ExitPolicy], trace: Trace) -> Iterator[tuple[int, Outcome]]:
    """`replay` of each policy, as counts, with its index, in any order; those that differ only in limits together."""
    groups: dict[bytes | int, list[int]] = {}
    for index, policy in enumerate(policies):
        _prepare(policy, trace)
        key = policy.score_key()
        groups.setdefault(index if key is None else key, []).append(index)
    shared = _with_cached_signals(trace)
    for group, members in groups.items():
        if isinstance(group, int) or len(members) == 1:
            for index in members:
                decisions = replay(policies[index], shared)
                yield index, outcome_of(decisions.exits, decisions.predictions, trace.labels, trace.num_exits)
            continue
        limits = np.array([policies[index].limits() for index in members], dtype=np.float64)
        yield from zip(members, outcomes_of(policies[members[0]].scores(shared), limits), strict=True)


def _prepare(policy: ExitPolicy, trace: Trace) -> None:
    policy.bind(trace.exit_layers, trace.num_labels)
    policy.check_trace(trace, "the trace")
    policy.check_calibrated()


def _with_cached_signals(trace: Trace) -> Trace:
    """`trace` with the signals of each exit computed once; `trace` itself if they are too large."""
    # Log-probabilities and probabilities, 8 bytes each.
    if trace.has_logits and 16 * trace.logits.numel() > MAX_CACHED_BYTES:
        return trace
    shared = copy.copy(trace)
    vars(shared)["exit_signals"] = functools.cache(trace.exit_signals)
    return shared
