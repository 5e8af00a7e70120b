"""`replay` of many policies at once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from beem_plugin.calibration.outcomes import Outcome, TableOutcomes, outcome_of, value_outcomes
from beem_plugin.calibration.replay import check_trace_serves, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policy import ExitPolicy

KEPT_BYTES = 2**30
"""How much of what is computed from the logits may be kept, so that the next policy need not compute it anew."""


def replay_many(policies: Sequence[ExitPolicy], trace: ExitTrace) -> Iterator[tuple[int, Outcome]]:
    """
    What `replay` of each policy gives, as counts. Policies that differ only in what they compare their scores with are
    one pass over the trace, however many they are; others are stepped one by one, on signals that are computed once.

    # Parameters

    policies : `Sequence[ExitPolicy]`
        Calibrated.
    trace : `ExitTrace`

    # Returns

    `Iterator[tuple[int, Outcome]]`
        The index in `policies` and the outcome: each once, in no particular order.

    # Raises

    As `replay`.
    """
    groups: dict[bytes | int, list[int]] = {}
    for index, policy in enumerate(policies):
        policy.bind(trace.exit_layers, trace.num_labels)
        check_trace_serves(policy, trace, "the trace")
        policy.check_calibrated()
        key = policy.score_key()
        groups.setdefault(index if key is None else key, []).append(index)
    shared = with_kept_signals(trace)
    for group, members in groups.items():
        if isinstance(group, int) or len(members) == 1:
            for index in members:
                decisions = replay(policies[index], shared)
                yield index, outcome_of(decisions.exits, decisions.predictions, trace.labels, trace.num_exits)
            continue
        table = policies[members[0]].scores(shared)
        limits = np.array([policies[index].limits() for index in members], dtype=np.float64)
        outcomes = value_outcomes(table, limits) if trace.is_regression else TableOutcomes(table).of(limits)
        yield from zip(members, outcomes, strict=True)


def with_kept_signals(trace: ExitTrace) -> ExitTrace:
    """`trace`, but what an exit says is computed once, however many ask; as it is where that would be too large."""
    # Log-probabilities and probabilities, 8 bytes each.
    if trace.has_logits and 16 * trace.logits.numel() > KEPT_BYTES:
        return trace
    shared = copy.copy(trace)
    vars(shared)["exit_signals"] = functools.cache(trace.exit_signals)
    return shared
