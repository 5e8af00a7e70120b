"""Label, confidence, margin and entropy of an exit. They are computed in this file and nowhere else."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def decision_dtype(device: torch.device) -> torch.dtype:
    """The precision of decisions: float64, so that they do not depend on rounding; float32 on devices without it."""
    return torch.float32 if device.type == "mps" else torch.float64


def label_of(logits: Tensor) -> Tensor:
    """`(..., labels)` logits or log-probabilities to the `(...)` most probable label, the first one of a tie."""
    return logits.argmax(-1)


def prediction_of(output: Tensor) -> Tensor:
    """The label of `(batch, labels)` log-probabilities; a regression's `(batch, 1)` values as `(batch,)`."""
    return output.squeeze(-1) if output.shape[-1] == 1 else label_of(output)


def confidence_of(log_probabilities: Tensor) -> Tensor:
    """`(..., labels)` to the largest probability, C_i in the papers."""
    return log_probabilities.amax(-1).exp()


def margin_of(log_probabilities: Tensor) -> Tensor:
    """`(..., labels)` to the difference between the two largest probabilities."""
    top = log_probabilities.topk(2, dim=-1).values  # (..., 2)
    return top[..., 0].exp() - top[..., 1].exp()


def entropy_of(log_probabilities: Tensor) -> Tensor:
    """`(..., labels)` to the entropy in nats. A probability that underflows to 0 contributes 0, not NaN."""
    return -(log_probabilities.exp() * log_probabilities).nan_to_num(nan=0.0).sum(-1)


def cat_padded(parts: Sequence[Tensor]) -> Tensor:
    """One or more tensors below each other; matrices of different widths are padded with -1 on the right."""
    if parts[0].ndim == 2:
        longest = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, longest - part.shape[1]), value=-1) for part in parts]
    return torch.cat(list(parts))


class ExitSignals:
    """
    What policies read of one exit: its logits and further signals. Each quantity is computed once, when it is first
    read, in the decision precision and from a log-softmax, so that saturated and tiny probabilities stay finite. A
    single logit is the value of a regression, which has no probabilities.

    # Parameters

    logits : `Tensor`
        `(batch, labels)`, of any floating type, finite.
    extra : `Mapping[str, Tensor]`, optional (default = `{}`)
        Further signals by name (`similarity`, `gate`, `halt`, `predicted_error`, ...), each `(batch,)`.
    """

    def __init__(self, logits: Tensor, extra: Mapping[str, Tensor] | None = None) -> None:
        self.logits = logits
        self.extra = dict(extra or {})

    def __len__(self) -> int:
        return self.batch_size

    @property
    def batch_size(self) -> int:
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def precision(self) -> torch.dtype:
        """In which all is computed."""
        return decision_dtype(self.device)

    def flags(self, value: bool) -> Tensor:
        """`(batch,)` bool, `value` for every sample."""
        return torch.full((self.batch_size,), value, device=self.device)

    def with_logits(self, logits: Tensor) -> "ExitSignals":
        """The same signals beside other logits."""
        return ExitSignals(logits, self.extra)

    def index_select(self, index: Tensor) -> "ExitSignals":
        """The signals of the samples at `index`, a `(kept,)` int64 tensor."""
        return ExitSignals(
            self.logits.index_select(0, index),
            {name: value.index_select(0, index) for name, value in self.extra.items()},
        )

    @classmethod
    def join(cls, parts: Sequence[Any]) -> "ExitSignals":
        """The signals of the samples of all parts, one or more of this class."""
        extra = {name: torch.cat([part.extra[name] for part in parts]) for name in parts[0].extra}
        return ExitSignals(torch.cat([part.logits for part in parts]), extra)

    @property
    def is_regression(self) -> bool:
        return self.logits.shape[-1] == 1

    @cached_property
    def log_probabilities(self) -> Tensor:
        """`(batch, labels)` log-softmax."""
        return self.logits.to(self.precision).log_softmax(-1)

    @cached_property
    def probabilities(self) -> Tensor:
        """`(batch, labels)`"""
        return self.log_probabilities.exp()

    @cached_property
    def output(self) -> Tensor:
        """`(batch, labels)` log-probabilities, or `(batch, 1)` the value of a regression."""
        return self.logits.to(self.precision) if self.is_regression else self.log_probabilities

    @cached_property
    def prediction(self) -> Tensor:
        """`(batch,)` int64: the most probable label, the first one of a tie; a regression's value."""
        return prediction_of(self.output)

    @cached_property
    def confidence(self) -> Tensor:
        """`(batch,)` the largest probability."""
        return confidence_of(self.log_probabilities)

    @cached_property
    def margin(self) -> Tensor:
        """`(batch,)` the difference between the two largest probabilities."""
        return margin_of(self.log_probabilities)

    @cached_property
    def entropy(self) -> Tensor:
        """`(batch,)` in nats."""
        return entropy_of(self.log_probabilities)

    def signal(self, name: str) -> Tensor:
        """The further signal `name`, `(batch,)`, in the decision precision."""
        value = self.extra[name]
        return value.to(decision_dtype(value.device))
