"""MPNet: every block adds the same learned bias of relative positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.direct_block import DirectBlock, mpnet_block
from beem_plugin.backbones.transformer import TransformerBackbone


class MPNetBackbone(TransformerBackbone):
    """`model_type` `mpnet`."""

    attn_implementation: ClassVar[str] = "eager"
    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {"key_mask": (3,), "position_bias": (2, 3)}

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        # The first real token has position 2: the padding id is 1 in the code, whatever the configuration says.
        return config.max_position_embeddings - 2

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"])

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        # transformers' compute_position_bias copies this for every sample, and older ones make it on the CPU first.
        encoder = self.transformer_model.encoder
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        bucket = encoder.relative_position_bucket(position[None, :] - position[:, None])
        bias = encoder.relative_attention_bias(bucket)  # (tokens, tokens, heads)
        return {"position_bias": bias.permute(2, 0, 1)[None]}

    def block(self, number: int, state: BackboneState) -> Tensor:
        layer = self.transformer_model.encoder.layer[number - 1]
        return layer(state.hidden_states, state.batched.get("key_mask"), state.shared["position_bias"])[0]

    def direct_block(self, number: int) -> DirectBlock | None:
        return mpnet_block(self.transformer_model.encoder.layer[number - 1])

    def direct_mask(self, state: BackboneState) -> Tensor | None:
        bias, mask = state.shared["position_bias"], state.batched.get("key_mask")
        # The sum is the same for all blocks. It is kept beside the mask that it was made of: the state of other samples
        # has another mask, and the same `shared`.
        made_of, summed = state.shared.get("position_and_mask", (bias, None))
        if summed is None or made_of is not mask:
            summed = aligned(bias if mask is None else bias + mask)
            state.shared["position_and_mask"] = (mask, summed)
        return summed


def aligned(mask: Tensor) -> Tensor:
    """The same numbers, rows starting at multiples of 8: attention would otherwise copy them so in every block."""
    length = mask.shape[-1]
    if mask.device.type == "cpu" or length % 8 == 0:
        return mask
    rows = mask.new_empty((*mask.shape[:-1], -(-length // 8) * 8))[..., :length]
    return rows.copy_(mask)
