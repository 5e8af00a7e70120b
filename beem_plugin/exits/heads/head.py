"""What one exit adds to the backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.exits.outputs import HeadOutput


class ExitHead(torch.nn.Module):
    """
    From a layer's hidden states to logits. A head may look back at what earlier exits left in the sample's memory:
    tensors by name, each with the samples first, which follow a sample through whatever batches it is computed in.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    """Names of what `memory_after` leaves for the next exits."""

    @property
    def reads(self) -> str | None:
        """
        `"first"` or `"mean"` for a head that reads nothing but the first token, or the mean of all tokens, of each
        sample, and no memory: engines then pass this vector as a sequence of one token. `None` for other heads.
        """
        return None

    pooled_size: int
    """The size of `HeadOutput.pooled`."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, memory: Mapping[str, Tensor]) -> HeadOutput:
        """
        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`
        attention_mask : `Tensor`
            `(batch, tokens)` bool
        memory : `Mapping[str, Tensor]`
            What the exits before this one left; empty at exit 1.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this exit leaves for the next ones; the names of `remembers`, at every exit."""
        return {}


@dataclass
class HeadSizes:
    """
    What heads need to know of the network.

    # Parameters

    num_exits, hidden_size, num_labels : `int`
    dropout : `float`
        Before every classifier.
    make_pooler : `Callable[[], Seq2VecEncoder]`
        A new pooler as the encoder's `pooler` block says.
    share_pooler, share_classifier : `bool`
        One for all exits.
    """

    num_exits: int
    hidden_size: int
    num_labels: int
    dropout: float
    make_pooler: Callable[[], Seq2VecEncoder]
    share_pooler: bool = True
    share_classifier: bool = False

    def poolers(self) -> list[Seq2VecEncoder]:
        """A pooler for each exit; the same one where it is shared."""
        if self.share_pooler:
            return [self.make_pooler()] * self.num_exits
        return [self.make_pooler() for _ in range(self.num_exits)]

    def classifiers(self, size: int) -> list[torch.nn.Linear]:
        """A linear classifier of vectors of `size` for each exit; the same one where it is shared."""
        if self.share_classifier:
            return [new_classifier(size, self.num_labels)] * self.num_exits
        return [new_classifier(size, self.num_labels) for _ in range(self.num_exits)]


class HeadFamily(Registrable):
    """Builds the heads of all exits of a network: the block `head` of a multi-exit encoder."""

    default_implementation = "pooled"

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        """One head an exit; modules that exits share are one object."""
        raise TypeError(f"{type(self).__name__} does not define build")


def new_classifier(size: int, num_labels: int) -> torch.nn.Linear:
    """As BERT initialises its classifier."""
    classifier = torch.nn.Linear(size, num_labels)
    torch.nn.init.normal_(classifier.weight, std=0.02)
    torch.nn.init.zeros_(classifier.bias)
    return classifier
