"""Exit when the entropy is low."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds


@ExitPolicy.register("entropy")
class Entropy(ThresholdPolicy):
    """
    A sample exits at the first exit whose entropy H = -sum_c p(c) ln p(c) is below the threshold, strictly: BranchyNet,
    DeeBERT (Xin et al. 2020, Algorithm 1), ElasticBERT and Global Past-Future in nats; FastBERT (Liu et al. 2020,
    Eq. 7) with H / ln C.

    The entropy is taken from a log-softmax. The releases compute ln A - B / A or p * log(p), which overflow to NaN on
    saturated logits, and since NaN < threshold is false their most confident samples never exit. FastBERT's batched
    code also accepts an entropy equal to the threshold; its paper and its package do not.

    Registered as an `ExitPolicy` with name "entropy".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Nats, from 0 to ln C (0.693 for two labels), or fractions of ln C if `normalized`. See `ThresholdPolicy`.
    normalized : `bool`, optional (default = `False`)
        Whether the entropy is divided by ln C, so that it runs from 0 to 1 for any number of labels.
    min_exit : `int`, optional (default = `1`)
    """

    higher_is_more_confident: ClassVar[bool] = False
    strict: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True

    def __init__(self, thresholds: Thresholds | None = None, normalized: bool = False, min_exit: int = 1) -> None:
        super().__init__(thresholds, min_exit)
        self.normalized = normalized

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        entropy = signals.entropy
        return ExitState(score=entropy / math.log(self.num_labels) if self.normalized else entropy)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 0.0, 1.0 if self.normalized else math.log(self.num_labels)

    def parameters(self) -> dict[str, Any]:
        return {"normalized": self.normalized}
