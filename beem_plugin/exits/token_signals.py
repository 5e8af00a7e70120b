"""Signals of an exit over a vocabulary: a few numbers per token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.signals import ExitSignals, cat_padded, label_of


@dataclass
class TokenSummary:
    """The numbers that policies read of a distribution over the vocabulary."""

    top_token: Tensor  # (tokens,) int64: the most probable entry
    top_probability: Tensor  # (tokens,) float32, as the following
    entropy: Tensor  # in nats
    margin: Tensor  # to the second probability

    @classmethod
    def of(cls, logits: Tensor) -> "LogitsSummary":
        """The summary of `(tokens, vocabulary)` logits; each number is computed when it is first read."""
        return LogitsSummary(logits)

    def index_select(self, index: Tensor) -> "TokenSummary":
        return TokenSummary(*(getattr(self, name).index_select(0, index) for name in SUMMARIES))


SUMMARIES = ("top_token", "top_probability", "entropy", "margin")


class LogitsSummary(ExitSignals):
    """A `TokenSummary` of `(tokens, vocabulary)` logits, each number computed when read; in float32, as in a trace."""

    precision = torch.float32  # type: ignore[assignment]

    @cached_property
    def top_token(self) -> Tensor:
        return label_of(self.logits)

    @property
    def top_probability(self) -> Tensor:
        return self.confidence

    def index_select(self, index: Tensor) -> "LogitsSummary":
        return LogitsSummary(self.logits.index_select(0, index))


def shortlist_summary(logits: Tensor, candidates: Tensor, mass: Tensor) -> TokenSummary:
    """Of `(tokens, shortlist)` candidates with total probability `mass`; the remainder is one entry in the entropy."""
    log_p = logits.log_softmax(-1) + mass.clamp_min(1e-30).log().unsqueeze(1)
    top = log_p.topk(2, dim=-1).values.exp()
    rest = (1 - mass).clamp(1e-30, 1)
    entropy = -(log_p.exp() * log_p).sum(-1) - rest * rest.log()
    token = candidates.gather(1, log_p.argmax(-1, keepdim=True)).squeeze(1)
    return TokenSummary(token, top[:, 0], entropy, top[:, 0] - top[:, 1])


def summarised(name: str) -> Any:
    """The number `name` of the summary, in the decision precision."""
    return cached_property(lambda self: getattr(self.summary, name).to(self.precision))


class TokenSignals(ExitSignals):
    """
    The signals of an exit over a vocabulary, each computed when a policy first reads it: `logits` returns `(tokens,
    vocabulary)`, `summary` by default theirs, `extra` further signals, `(tokens,)`. `output`, `(tokens, numbers)`,
    is what engines return of a token, or of a whole sentence of tags; by default the log-probabilities.
    """

    def __init__(
        self,
        size: int,
        device: torch.device,
        logits: Callable[[], Tensor] | None = None,
        summary: Callable[[], TokenSummary | LogitsSummary] | None = None,
        extra: Mapping[str, Callable[[], Tensor]] | None = None,
        output: Tensor | None = None,
    ) -> None:
        self.size = size
        self._output = output
        self._device = device
        self._logits = logits
        self._summary = summary
        self._extra = dict(extra or {})
        self._computed: dict[str, Tensor] = {}

    @property
    def batch_size(self) -> int:
        return self.size

    @property
    def device(self) -> torch.device:
        return self._device

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]  # computed when read
        """`(tokens, vocabulary)`"""
        if self._logits is None:
            raise ConfigurationError(
                "an exit policy reads the probabilities of all tokens, which a caption trace does not store; allowed: "
                "policies that read the most probable token, its probability, the margin or the entropy"
            )
        return self._logits()

    @cached_property
    def summary(self) -> TokenSummary | LogitsSummary:
        return self._summary() if self._summary is not None else TokenSummary.of(self.logits)

    def index_select(self, index: Tensor) -> "TokenSignals":
        def selected(name: str) -> Callable[[], Tensor]:
            return lambda: self._value(name).index_select(0, index)

        return TokenSignals(
            len(index),
            self._device,
            None if self._logits is None else lambda: self.logits.index_select(0, index),
            lambda: self.summary.index_select(index),
            {name: selected(name) for name in self._extra},
            None if self._output is None else self._output.index_select(0, index),
        )

    @classmethod
    def join(cls, parts: "Sequence[TokenSignals]") -> "TokenSignals":
        """Of sentences of tags: summaries and outputs alone. Outputs are padded with -1."""
        columns = (torch.cat([getattr(part.summary, name) for part in parts]) for name in SUMMARIES)
        summary = TokenSummary(*columns)
        output = cat_padded([part.output for part in parts])
        return TokenSignals(len(output), parts[0].device, summary=lambda: summary, output=output)

    @cached_property
    def output(self) -> Tensor:
        return super().output if self._output is None else self._output

    @cached_property
    def prediction(self) -> Tensor:
        return self.summary.top_token

    confidence = summarised("top_probability")
    margin = summarised("margin")
    entropy = summarised("entropy")

    def signal(self, name: str) -> Tensor:
        return self._value(name).to(self.precision)

    def _value(self, name: str) -> Tensor:
        if name not in self._computed:
            self._computed[name] = self._extra[name]()
        return self._computed[name]
