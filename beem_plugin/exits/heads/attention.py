"""A small attention network over the whole sequence: FastBERT's head."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.outputs import HeadOutput


class AttentionHead(ExitHead):
    """The classifier's input size is the head's width; several exits may share it. See `AttentionHeads`."""

    def __init__(
        self, hidden_size: int, classifier: torch.nn.Linear, num_heads: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        size = classifier.in_features
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.reduce = torch.nn.Linear(hidden_size, size)
        self.query = torch.nn.Linear(size, size)
        self.key = torch.nn.Linear(size, size)
        self.value = torch.nn.Linear(size, size)
        self.merge = torch.nn.Linear(size, size)
        self.dense = torch.nn.Linear(size, size)
        self.dropout = torch.nn.Dropout(dropout)
        self.classifier = classifier
        self.pooled_size = size

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        reduced = torch.tanh(self.reduce(hidden_states))
        # Only the first token is read, so only its query is computed.
        attended = functional.scaled_dot_product_attention(
            self._by_head(self.query(reduced[:, :1])),
            self._by_head(self.key(reduced)),
            self._by_head(self.value(reduced)),
            attn_mask=None if attention_mask is None else attention_mask[:, None, None, :],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        pooled = torch.tanh(self.dense(self.merge(attended.transpose(1, 2).flatten(2)[:, 0])))
        return HeadOutput(self.classifier(self.dropout(pooled)), pooled)

    def _by_head(self, vectors: Tensor) -> Tensor:
        """`(batch, tokens, size)` to `(batch, heads, tokens, size / heads)`."""
        return vectors.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


@HeadFamily.register("attention")
class AttentionHeads(HeadFamily):
    """
    FastBERT's heads (Liu et al. 2020, section 3.1), at every exit: a linear map to `size` and tanh, self-attention over
    the real tokens, the first token's vector, a linear map and tanh, dropout, a linear classifier. 181 thousand
    parameters an exit for a backbone of 768 and two labels. The encoder's `pooler` and `share_pooler` are not used.

    Registered as a `HeadFamily` with name "attention".

    # Parameters

    size : `int`, optional (default = `128`)
    num_heads : `int`, optional (default = `2`)
    attention_dropout : `float`, optional (default = the encoder's `dropout`)
        The release's default is 0.5.
    """

    def __init__(self, size: int = 128, num_heads: int = 2, attention_dropout: float | None = None) -> None:
        if num_heads < 1 or size < num_heads or size % num_heads:
            raise ConfigurationError(
                f"head.num_heads: found {num_heads} for head.size {size}, allowed: a number that divides the size"
            )
        check_number("head.attention_dropout", attention_dropout, high=1, open_high=True)
        self.size = size
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        attention_dropout = sizes.dropout if self.attention_dropout is None else self.attention_dropout
        return [
            AttentionHead(sizes.hidden_size, classifier, self.num_heads, sizes.dropout, attention_dropout)
            for classifier in sizes.classifiers(self.size)
        ]
