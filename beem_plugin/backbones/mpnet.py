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
    def position_padding(cls, config: Any) -> int | None:
        # A constant in transformers, whatever the configuration has.
        return 1

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"position_bias": self.position_bias(hidden_states.shape[1])}

    def position_bias(self, tokens: int) -> Tensor:
        # transformers' compute_position_bias copies the bias for every sample, in older releases from the CPU.
        encoder = self.transformer_model.encoder
        position = torch.arange(tokens, device=encoder.relative_attention_bias.weight.device)
        bucket = encoder.relative_position_bucket(position[None, :] - position[:, None])
        bias = encoder.relative_attention_bias(bucket)  # (tokens, tokens, heads)
        return bias.permute(2, 0, 1).contiguous()[None]

    def block(self, number: int, state: BackboneState) -> Tensor:
        module = self.block_module(number)
        output: Tensor = module(state.hidden_states, state.batched.get("key_mask"), state.shared["position_bias"])[0]
        return output
