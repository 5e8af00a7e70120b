"""The quantities of Theorem 3.1 of the BEEM paper, estimated on a trace."""

from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policy import ExitPolicy


def theory_report(policy: ExitPolicy, trace: ExitTrace) -> dict[str, Any]:
    """
    Estimates every quantity of Theorem 3.1 on the labelled samples of `trace`: if q_i < a_i / (a_i + (1/p - 1)
    b_i^(i-1)) at all exits i < L, the theorem claims that the error of the calibrated `policy` is below that of the
    last exit.

    C_t is taken as the number of label changes, as in the text under the theorem, not in its appendix; minimum and
    maximum run up to i, as in the text. The proof assumes that exits err independently, and equates "the error of early
    exits is below p" with "the total error is below p": `condition_holds` and `better_than_final` are both given.

    The report has `samples`; `final_error`, p; `error` of the policy; `condition_holds` at every exit before the last
    (`None`: violated nowhere, not estimated everywhere); `better_than_final`, the theorem's claim; and by exit, `None`
    where a number cannot be estimated: `error`, q_i; `a`, A_i^1 / A_i^0, where A_i^c is the share that exits at i of
    the samples with c label changes up to i; `b`, max(q_1..q_i) / min(q_1..q_i); `bound`, 0 where p is 0; `holds`, q_i
    is below; `leaving`, samples that exit here; their `leaving_error`, which the proof bounds by p, and
    `leaving_final_error`, the last exit's on them; `overthinking`, the share of all samples that are right here and
    wrong at the last exit, and `underthinking`, the reverse.
    """
    rows = (trace.labels >= 0).nonzero().flatten()
    if len(rows) == 0:
        raise ConfigurationError(f"the theory report needs labels: found none for {len(trace)} samples")
    trace = trace.select(rows)
    decisions = replay(policy, trace)
    predictions = trace.predictions
    wrong = predictions != trace.labels.unsqueeze(1)
    error = wrong.double().mean(0)
    final_error = float(error[-1])
    changes = torch.zeros_like(predictions)
    changes[:, 1:] = (predictions[:, 1:] != predictions[:, :-1]).to(torch.int64).cumsum(1)
    wrong_at_leaving = decisions.predictions != trace.labels
    exits: list[dict[str, Any]] = []
    for column in range(trace.num_exits):
        leaves = decisions.exits == column + 1
        a = ratio(share(leaves, changes[:, column] == 1), share(leaves, changes[:, column] == 0))
        b = ratio(float(error[: column + 1].max()), float(error[: column + 1].min()))
        bound = exit_bound(a, b, final_error, column + 1)
        exits.append(
            {
                "exit": column + 1,
                "error": float(error[column]),
                "a": a,
                "b": b,
                "bound": bound,
                "holds": None if bound is None else float(error[column]) < bound,
                "leaving": int(leaves.sum()),
                "leaving_error": share(wrong_at_leaving, leaves),
                "leaving_final_error": share(wrong[:, -1], leaves),
                "overthinking": float((~wrong[:, column] & wrong[:, -1]).double().mean()),
                "underthinking": float((wrong[:, column] & ~wrong[:, -1]).double().mean()),
            }
        )
    holds = [entry["holds"] for entry in exits[:-1]]
    reached = float(wrong_at_leaving.double().mean())
    return {
        "samples": len(trace),
        "final_error": final_error,
        "error": reached,
        "condition_holds": False if False in holds else None if None in holds else True,
        "better_than_final": reached < final_error,
        "exits": exits,
    }


def exit_bound(a: float | None, b: float | None, p: float, exit_number: int) -> float | None:
    """a / (a + (1/p - 1) b^(i-1)), Theorem 3.1."""
    if a is None or b is None:
        return None
    return a / (a + (1 / p - 1) * b ** (exit_number - 1)) if p and a else 0.0


def share(counted: Tensor, among: Tensor) -> float | None:
    """The share of `counted` among the samples `among`; `None` if there are none."""
    return ratio(int((counted & among).sum()), int(among.sum()))


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
