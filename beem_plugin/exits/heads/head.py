"""The contract of exit heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.exits.outputs import HeadOutput

NO_MEMORY: Mapping[str, Tensor] = MappingProxyType({})


class ExitHead(torch.nn.Module):
    """
    Computes logits from the hidden states of all tokens of a layer. Any module can be a head: a linear classifier on
    one vector, attention, a transformer block of its own. It is called with the hidden states and the attention mask,
    and must process each sample independently of the others and of padding. Its cost in `mac_speedup` is measured by
    running it (all matrix products, convolutions and attention).

    A head can read tensors that earlier exits have stored for the sample, by name, each with the samples first.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that `memory_after` stores for the next exits."""

    @property
    def reads(self) -> str | None:
        """
        `"first"` or `"mean"` for a head that reads nothing but the first token, or the mean of all tokens, of each
        sample, and no memory: engines then pass this vector as a sequence of one token. `None` for other heads.
        """
        return None

    pooled_size: int
    """The size of `HeadOutput.pooled`."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        """
        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`
        attention_mask : `Tensor`, optional (default = `None`)
            `(batch, tokens)` bool, true at real tokens; `None` if all are.
        memory : `Mapping[str, Tensor]`, optional (default = `{}`)
            The tensors stored by earlier exits; empty at exit 1.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors stored for the next exits: those of `remembers`, at every exit."""
        return {}


@dataclass
class HeadSizes:
    """The sizes and modules that heads are built from."""

    num_exits: int
    hidden_size: int
    num_labels: int
    dropout: float  # before every classifier
    make_pooler: Callable[[], Seq2VecEncoder]  # a new one, from the encoder's `pooler` block
    share_pooler: bool = True  # all exits share one
    share_classifier: bool = False

    def poolers(self) -> list[Seq2VecEncoder]:
        """A pooler for each exit; one object for all if shared."""
        if self.share_pooler:
            return [self.make_pooler()] * self.num_exits
        return [self.make_pooler() for _ in range(self.num_exits)]

    def classifiers(self, size: int) -> list[torch.nn.Linear]:
        """A linear classifier of vectors of `size` for each exit; one object for all if shared."""
        if self.share_classifier:
            return [new_classifier(size, self.num_labels)] * self.num_exits
        return [new_classifier(size, self.num_labels) for _ in range(self.num_exits)]


class HeadFamily(Registrable):
    """Builds the heads of all exits of a network: the block `head` of a multi-exit encoder."""

    default_implementation = "pooled"

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        """One head per exit; modules that exits share are one object."""
        raise TypeError(f"{type(self).__name__} does not define build")


def new_classifier(size: int, num_labels: int) -> torch.nn.Linear:
    """As BERT initialises its classifier."""
    classifier = torch.nn.Linear(size, num_labels)
    torch.nn.init.normal_(classifier.weight, std=0.02)
    torch.nn.init.zeros_(classifier.bias)
    return classifier
