"""MPNet: every block adds the same learned bias of relative positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.direct_block import DirectBlock, mpnet_block
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings
from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.backbones.untouched import is_written_down, version_of

PAD_TOKEN = 1
"""In the code, whatever the configuration says: the first real token has position 2."""


class MPNetBackbone(TransformerBackbone):
    """`model_type` `mpnet`."""

    attn_implementation: ClassVar[str] = "eager"
    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {"key_mask": (3,), "position_bias": (2, 3)}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: tuple[Any, Tensor] | None = None

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        return PAD_TOKEN

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings, pad_token=PAD_TOKEN)

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"])

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        length, device = hidden_states.shape[1], hidden_states.device
        table = self.transformer_model.encoder.relative_attention_bias.weight
        if torch.is_grad_enabled() or is_written_down(device.type):
            return {"position_bias": self._position_bias(length, device)}
        # Positions are relative, so that the bias of few tokens is a corner of that of many, which is kept.
        state = (table.data_ptr(), version_of(table), table.dtype)
        if self._kept is None or self._kept[0] != state or self._kept[1].shape[2] < length:
            bias = self._position_bias(length, device)
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return {"position_bias": bias}  # which holds nothing yet
            self._kept = (state, bias)
        return {"position_bias": self._kept[1][:, :, :length, :length]}

    def _position_bias(self, length: int, device: torch.device) -> Tensor:
        return self.position_bias(length)

    def position_bias(self, tokens: int) -> Tensor:
        # transformers' compute_position_bias copies this for every sample, and older ones make it on the CPU first.
        encoder = self.transformer_model.encoder
        position = torch.arange(tokens, device=encoder.relative_attention_bias.weight.device)
        bucket = encoder.relative_position_bucket(position[None, :] - position[:, None])
        bias = encoder.relative_attention_bias(bucket)  # (tokens, tokens, heads)
        return bias.permute(2, 0, 1).contiguous()[None]

    def block(self, number: int, state: BackboneState) -> Tensor:
        layer = self.transformer_model.encoder.layer[number - 1]
        return layer(state.hidden_states, self.key_mask(state), state.shared["position_bias"])[0]

    def direct_block(self, number: int) -> DirectBlock | None:
        return mpnet_block(self.transformer_model.encoder.layer[number - 1])

    def direct_bias(self, state: BackboneState) -> Tensor | None:
        return state.shared["position_bias"]

    def direct_mask(self, state: BackboneState) -> Tensor | None:
        bias, mask = state.shared["position_bias"], state.batched.get("key_mask")
        # The sum is the same for all blocks. It is kept beside the mask that it was made of: the state of other samples
        # has another mask, and the same `shared`.
        made_of, summed = state.shared.get("position_and_mask", (bias, None))
        if summed is None or made_of is not mask:
            summed = aligned(bias if mask is None else bias + self.key_mask(state))
            state.shared["position_and_mask"] = (mask, summed)
        return summed


def aligned(mask: Tensor) -> Tensor:
    """The same numbers, rows starting at multiples of 8: attention would otherwise copy them so in every block."""
    length = mask.shape[-1]
    if mask.device.type == "cpu" or length % 8 == 0:
        return mask
    rows = mask.new_empty((*mask.shape[:-1], -(-length // 8) * 8))[..., :length]
    return rows.copy_(mask)
