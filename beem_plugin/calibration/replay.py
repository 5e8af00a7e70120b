"""Applies policies to a trace and computes the exit of each sample."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.outcomes import Outcome, outcome_of, outcomes_of
from beem_plugin.exits.policy import ExitPolicy, check_signals
from beem_plugin.exits.signals import cat_padded, prediction_of
from beem_plugin.exits.trace_interface import Trace

__all__ = ["ExitDecisions", "check_signals", "replay", "replay_many"]

MAX_CACHED_BYTES = 2**30  # limit of the log-probabilities and probabilities that are cached for several policies


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
    Steps `policy`, which is bound to the trace's exits, over all exits of `trace`, all samples at once. Samples that
    have exited are still stepped and the results ignored: a policy processes each sample independently, so this equals
    removing them. One that adapts starts over, and learns from one sample after the other. Parameters that are not
    fitted are a `NotCalibratedError`, a signal that the trace lacks is a `ConfigurationError`.
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
        leaves, state = policy.step(exit_number, signals, state)
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
    """
    `replay` of each policy, as counts: each index in `policies` once, in any order, and its outcome. Policies that
    differ only in their limits share one pass over the trace; others are replayed one by one, on signals that are
    computed once.
    """
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
