"""What one exit says about a batch of samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor


def decision_dtype(device: torch.device) -> torch.dtype:
    """
    The precision in which exits are decided: float64, so that a decision never hangs on rounding and a reference
    implementation in numpy takes the same one; float32 on devices that have no float64.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def prediction_of(output: Tensor) -> Tensor:
    """`(batch, labels)` log-probabilities to the `(batch,)` most probable labels; a regression's values as they are."""
    return output.squeeze(-1) if output.shape[-1] == 1 else output.argmax(-1)


class ExitSignals:
    """
    What one exit says about each sample: its logits, and whatever further signals a policy declares that it needs. A
    single logit is the value that the exit of a regression gives; it has no probabilities.
    Quantities that several policies use are computed once, in the decision precision, from a log-softmax, so that
    saturated and tiny probabilities stay finite.

    # Parameters

    logits : `Tensor`
        `(batch, labels)`, of any floating type; an `ExitTrace` refuses NaN and infinite ones.
    extra : `Mapping[str, Tensor]`, optional (default = `{}`)
        Further signals by name (`similarity`, `gate`, `halt`, `predicted_error`, ...), each `(batch,)`.
    """

    def __init__(self, logits: Tensor, extra: Mapping[str, Tensor] | None = None) -> None:
        self.logits = logits
        self.extra = dict(extra or {})

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def flags(self, value: bool) -> Tensor:
        """`(batch,)` bool, `value` for every sample."""
        return torch.full((len(self),), value, device=self.device)

    def index_select(self, index: Tensor) -> ExitSignals:
        """The signals of the samples at `index`, a `(kept,)` int64 tensor."""
        return ExitSignals(
            self.logits.index_select(0, index),
            {name: value.index_select(0, index) for name, value in self.extra.items()},
        )

    @cached_property
    def log_probabilities(self) -> Tensor:
        """`(batch, labels)` log-softmax in the decision precision."""
        return self.logits.to(decision_dtype(self.logits.device)).log_softmax(-1)

    @property
    def is_regression(self) -> bool:
        return self.logits.shape[-1] == 1

    @cached_property
    def output(self) -> Tensor:
        """`(batch, labels)` what a sample that leaves is given: log-probabilities, or the value of a regression."""
        return self.logits.to(decision_dtype(self.logits.device)) if self.is_regression else self.log_probabilities

    @cached_property
    def probabilities(self) -> Tensor:
        """`(batch, labels)`"""
        return self.log_probabilities.exp()

    @cached_property
    def prediction(self) -> Tensor:
        """
        `(batch,)` int64: the most probable label, the first of several equally probable ones; a regression's value.
        """
        return prediction_of(self.output)

    @cached_property
    def confidence(self) -> Tensor:
        """`(batch,)` the largest probability, C_i in the papers."""
        return self.log_probabilities.amax(-1).exp()

    @cached_property
    def margin(self) -> Tensor:
        """`(batch,)` the largest probability less the second largest."""
        top = self.probabilities.topk(2, dim=-1).values  # (batch, 2)
        return top[:, 0] - top[:, 1]

    @cached_property
    def entropy(self) -> Tensor:
        """`(batch,)` in nats. A probability that underflows to 0 contributes 0, never NaN."""
        return -(self.probabilities * self.log_probabilities).nan_to_num(nan=0.0).sum(-1)

    def signal(self, name: str) -> Tensor:
        """The further signal `name`, `(batch,)`, in the decision precision."""
        value = self.extra[name]
        return value.to(decision_dtype(value.device))
