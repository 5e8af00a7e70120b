"""Exit when the exit's own probabilities are certain: largest probability, margin, entropy."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import check_choice
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds


@ExitPolicy.register("confidence")
@ExitPolicy.register("max_probability")
class MaxProbability(ThresholdPolicy):
    """
    A sample exits at the first exit whose largest probability is at least the threshold: the confidence criterion of
    Shallow-Deep networks (Kaya et al. 2019, section 3.2) and CALM's softmax variant.

    Registered as an `ExitPolicy` with name "max_probability", also as "confidence".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; probabilities.
    fallback : `str`, optional (default = `"last"`)
        The output of a sample that no exit before the last is confident about: `"last"`, the last exit's;
        `"most_confident"`, as in Shallow-Deep networks, that of the most confident of all exits from `min_exit` on, the
        earliest one of a tie. The sample is computed at full depth in both cases.
    """

    def __init__(self, thresholds: Thresholds | None = None, min_exit: int = 1, fallback: str = "last") -> None:
        super().__init__(thresholds, min_exit)
        check_choice("fallback", fallback, ("last", "most_confident"))
        self.fallback = fallback

    def needs(self, exit_number: int) -> bool:
        remembers = self.fallback == "most_confident" and exit_number >= self.min_exit
        return remembers or self.can_leave(exit_number)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        score = signals.confidence
        if self.fallback == "last":
            return ExitState(score=score)
        if exit_number <= self.min_exit:
            return ExitState(score=score, highest=score, most_confident=signals.log_probabilities)
        higher = score > state["highest"]
        return ExitState(
            score=score,
            highest=torch.where(higher, score, state["highest"]),
            most_confident=torch.where(higher.unsqueeze(1), signals.log_probabilities, state["most_confident"]),
        )

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 1 / self.num_labels, 1.0

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        if self.fallback == "most_confident" and exit_number >= self.num_exits:
            return state["most_confident"]
        return signals.output

    @property
    def needs_all_labels(self) -> bool:
        return self.fallback != "last"


@ExitPolicy.register("margin")
class Margin(ThresholdPolicy):
    """
    A sample exits at the first exit at which the largest probability exceeds the second largest by at least the
    threshold: the softmax variant of CALM (Schuster et al. 2022, section 3.5) and FREE.

    Registered as an `ExitPolicy` with name "margin".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; differences of probabilities, 0 to 1.
    """

    memoryless: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.margin)


@ExitPolicy.register("entropy")
class Entropy(ThresholdPolicy):
    """
    A sample exits at the first exit whose entropy H = -sum_c p(c) ln p(c) is below the threshold, strictly: BranchyNet,
    DeeBERT (Xin et al. 2020, Algorithm 1), ElasticBERT and Global Past-Future in nats; FastBERT (Liu et al. 2020,
    Eq. 7) with H / ln C.

    In the releases saturated logits give NaN, so that their most confident samples never exit; here they do. FastBERT's
    batched code also accepts an entropy equal to the threshold; its paper and its package do not.

    Registered as an `ExitPolicy` with name "entropy".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; nats, from 0 to ln C (0.693 for two labels), or fractions of ln C if `normalized`.
    normalized : `bool`, optional (default = `False`)
        Whether the entropy is divided by ln C, so that it runs from 0 to 1 for any number of labels.
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
