"""The contract of exit heads, and the default: pooler, dropout, linear classifier, as in BEEM, PABEE and DeeBERT."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.exits.outputs import HeadOutput
from beem_plugin.exits.poolers import as_input_of

T = TypeVar("T")
NO_MEMORY: Mapping[str, Tensor] = MappingProxyType({})


class ExitHead(torch.nn.Module):
    """
    Computes logits from the hidden states of all tokens of a layer, and from tensors that earlier exits have stored
    for the sample. Any module can be a head, if it processes each sample independently of others and of padding;
    its cost in `mac_speedup` is measured by running it.
    """

    remembers: ClassVar[tuple[str, ...]] = ()  # names of the tensors that `memory_after` stores for the next exits

    @property
    def reads(self) -> str | None:
        """
        `"first"` or `"mean"` for a head that reads the first token, or the mean of all tokens, alone: engines
        then pass this vector as a sequence of one token. `None` for other heads.
        """
        return None

    pooled_size: int  # the size of `HeadOutput.pooled`

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        """
        Of `(batch, tokens, hidden)` states and a `(batch, tokens)` bool mask, `None` if all tokens are real;
        `memory` is what earlier exits stored, empty at exit 1.
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
        return self._each(self.make_pooler, self.share_pooler)

    def classifiers(self, size: int) -> list[torch.nn.Linear]:
        """A linear classifier of vectors of `size` for each exit; one object for all if shared."""
        return self._each(lambda: new_classifier(size, self.num_labels), self.share_classifier)

    def _each(self, make: Callable[[], T], is_shared: bool) -> list[T]:
        return [make()] * self.num_exits if is_shared else [make() for _ in range(self.num_exits)]


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


class PooledHead(ExitHead):
    """A pooler and a classifier, either of which several exits may share; `dropout` is of the classifier's input."""

    def __init__(self, pooler: Seq2VecEncoder, classifier: torch.nn.Module, dropout: float) -> None:
        super().__init__()
        self.pooler = pooler
        self.dropout = torch.nn.Dropout(dropout)
        self.classifier = classifier
        self.pooled_size = pooler.get_output_dim()

    @property
    def reads(self) -> str | None:
        return None if self.remembers else getattr(self.pooler, "reads", None)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        return self.classify(self.pool(hidden_states, attention_mask), memory)

    def pool(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """`(batch, pooled_size)`: the pooled vectors, before dropout."""
        # Poolers that divide by a number of tokens return float32 for any precision of the layers.
        return as_input_of(self.reader, self.pooler(hidden_states, attention_mask))

    @property
    def reader(self) -> torch.nn.Module:
        """The module that reads the pooled vectors, in their precision."""
        return self.classifier

    def classify(self, pooled: Tensor, memory: Mapping[str, Tensor]) -> HeadOutput:
        """The output for what `pool` returned."""
        return HeadOutput(self.classifier(self.dropout(pooled)), pooled)


@HeadFamily.register("pooled")
class PooledHeads(HeadFamily):
    """
    The encoder's `pooler`, dropout, and a linear classifier at every exit.

    Registered as a `HeadFamily` with name "pooled", the default.
    """

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        poolers = sizes.poolers()
        classifiers = sizes.classifiers(poolers[0].get_output_dim())
        return [PooledHead(*modules, sizes.dropout) for modules in zip(poolers, classifiers, strict=True)]
