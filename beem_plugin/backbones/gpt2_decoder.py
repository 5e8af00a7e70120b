"""GPT-2 with cross-attention, one block at a time, with keys and values that the caller keeps."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import NewGELUActivation

from beem_plugin.common.errors import ConfigurationError

KeysValues = tuple[Tensor, Tensor]
"""Two tensors `(batch, heads, tokens, size)`."""


class Gpt2Decoder:
    """
    A view on a transformers `GPT2LMHeadModel` that runs its blocks one by one. The caller keeps keys and values, so
    that every token of every caption can have a depth of its own. The blocks' submodules are called, not their
    `forward`, whose cache arguments change from release to release.
    """

    def __init__(self, language_model: Any) -> None:
        self.language_model = language_model
        self.config = language_model.config
        self.blocks = language_model.transformer.h
        for block in self.blocks:
            if type(block.mlp.act) is NewGELUActivation:
                # The same function in one operation instead of eight.
                block.mlp.act = torch.nn.GELU(approximate="tanh")
        self.num_layers = len(self.blocks)
        self.hidden_size: int = self.config.hidden_size
        self.num_heads: int = self.config.num_attention_heads
        self.head_size = self.hidden_size // self.num_heads
        self.max_positions: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size

    @property
    def final_norm(self) -> torch.nn.LayerNorm:
        return self.language_model.transformer.ln_f

    @property
    def output_weight(self) -> Tensor:
        """`(words, hidden)` the vocabulary's matrix, by default the input embeddings themselves."""
        return self.language_model.lm_head.weight

    def embed(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        """`(batch, tokens)` int64 at consecutive positions to `(batch, tokens, hidden)`, the input of block 1."""
        end = first_position + tokens.shape[1]
        if end > self.max_positions:
            # On a GPU the table look-up would die with a device-side assertion that names nothing.
            raise ConfigurationError(
                f"a caption of {end} tokens, start included: the decoder has positions for {self.max_positions}; "
                "shorten max_length"
            )
        transformer = self.language_model.transformer
        positions = torch.arange(first_position, end, device=tokens.device)
        return transformer.drop(transformer.wte(tokens) + transformer.wpe(positions))

    def project(self, number: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each `(batch, heads, tokens, size)`, of the input `hidden` of block `number`."""
        block = self.blocks[number - 1]
        query, key, value = block.attn.c_attn(block.ln_1(hidden)).split(self.hidden_size, dim=-1)
        return self._heads(query), self._heads(key), self._heads(value)

    def keys_values(self, number: int, hidden: Tensor) -> KeysValues:
        """Key and value alone, of a state that skips block `number`."""
        block = self.blocks[number - 1]
        projection = block.attn.c_attn  # transformers' Conv1D: its weight is (in, out)
        weight, bias = projection.weight[:, self.hidden_size :], projection.bias[self.hidden_size :]
        key, value = functional.linear(block.ln_1(hidden), weight.t(), bias).split(self.hidden_size, dim=-1)
        return self._heads(key), self._heads(value)

    def cross_keys_values(self, number: int, image_states: Tensor) -> KeysValues:
        """Keys and values of block `number` for images `(images, patches, hidden)`."""
        key, value = self.blocks[number - 1].crossattention.c_attn(image_states).split(self.hidden_size, dim=-1)
        return self._heads(key), self._heads(value)

    def block(
        self,
        number: int,
        hidden: Tensor,
        query: Tensor,
        keys_values: KeysValues,
        mask: Tensor | None = None,
        is_causal: bool = False,
        cross: KeysValues | None = None,
        beams: int = 1,
    ) -> Tensor:
        """
        The rest of block `number`, `(batch, tokens, hidden)`, from its input `hidden`, the `query` `(batch, heads,
        tokens, size)` of `project`, and the keys and values of all tokens so far. `mask` is bool, true where a query
        attends, broadcastable to `(batch, heads, queries, keys)`; with `is_causal` instead, queries and keys are the
        same tokens, and each attends to those up to itself.

        `cross` are keys and values of the images, of which `beams` consecutive rows of the batch share a row; without,
        cross-attention is left out, as transformers does without an encoder.
        """
        block = self.blocks[number - 1]
        attended = self._attend(block.attn, number, query, keys_values, mask, is_causal)
        hidden = hidden + block.attn.resid_dropout(block.attn.c_proj(self._joined(attended)))
        if cross is not None:
            attention = block.crossattention
            cross_query = self._heads(attention.q_attn(block.ln_cross_attn(hidden)))
            rows, heads, tokens, size = cross_query.shape
            if beams > 1:  # queries of one image side by side, so that its keys need no copies
                cross_query = cross_query.reshape(rows // beams, beams, heads, tokens, size).transpose(1, 2)
                cross_query = cross_query.reshape(rows // beams, heads, beams * tokens, size)
            attended = self._attend(attention, number, cross_query, cross)
            if beams > 1:
                attended = attended.reshape(rows // beams, heads, beams, tokens, size).transpose(1, 2)
                attended = attended.reshape(rows, heads, tokens, size)
            hidden = hidden + attention.resid_dropout(attention.c_proj(self._joined(attended)))
        return hidden + block.mlp(block.ln_2(hidden))

    def scale(self, number: int) -> float:
        """The factor of attention scores in block `number`."""
        scale: float = self.head_size**-0.5 if self.config.scale_attn_weights else 1.0
        return scale / number if self.config.scale_attn_by_inverse_layer_idx else scale

    def _attend(
        self,
        attention: Any,
        number: int,
        query: Tensor,
        keys_values: KeysValues,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        dropout = attention.attn_dropout.p if attention.training else 0.0
        key, value = keys_values
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=self.scale(number)
        )

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)

    @staticmethod
    def _joined(attended: Tensor) -> Tensor:
        return attended.transpose(1, 2).flatten(2)
