"""Exit when a block hardly changes the hidden states."""

from __future__ import annotations

from typing import ClassVar

from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("similarity")
class Similarity(ThresholdPolicy):
    """
    A sample exits at the first exit whose hidden states are more similar to the previous block's than the threshold,
    strictly: cos(h_i, h_{i-1}) > tau (MuE, Tang et al. 2023; CALM's state variant). (A survey by BEEM's authors has the
    inequality reversed.) The similarity is computed for each sample: MuE's release takes one cosine over the flattened
    batch, so that a sample's exit depends on the other samples of the batch.

    Needs the signal `similarity`.

    Registered as an `ExitPolicy` with name "similarity".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Cosines, -1 to 1. See `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
        2 for CALM, which does not compare the first block's state with the embeddings.
    """

    required_signals: ClassVar[tuple[str, ...]] = ("similarity",)
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.signal("similarity"))

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return -1.0, 1.0
