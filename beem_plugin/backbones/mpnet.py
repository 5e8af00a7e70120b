"""MPNet: every block adds the same learned bias of relative positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
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
