"""ModernBERT: rotary positions, and attention that is global in some blocks and local in the others."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones import masks
from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.transformer import TransformerBackbone


class ModernBertBackbone(TransformerBackbone):
    """
    `model_type` `modernbert`.

    Its blocks are pre-norm: the states between them are the residual stream before normalisation. The final norm is
    part of the last block, as in the hidden states that transformers returns.
    """

    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "key_mask": (3,),
        "local_mask": (2, 3),
        "local_band": (2, 3),
        "full_attention_cos": (1,),
        "full_attention_sin": (1,),
        "sliding_attention_cos": (1,),
        "sliding_attention_sin": (1,),
    }
    blocks_path: ClassVar[str] = "layers"
    extra_config_keys: ClassVar[tuple[str, ...]] = (
        "global_attn_every_n_layers",
        "global_rope_theta",
        "local_rope_theta",
        "rope_scaling",
    )

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        config.layer_types = config.layer_types[:num_layers]
        config.num_hidden_layers = num_layers

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        return None

    def batched_extras(self, hidden_states: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        batched = super().batched_extras(hidden_states, attention_mask)
        band = self._band(hidden_states)
        if band is not None:
            # The only mask with a row for each query, and only for inputs longer than the local window.
            allowed = band & attention_mask[:, None, None, :]
            batched["local_mask"] = masks.additive(allowed, hidden_states.dtype)
        return batched

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        shared: dict[str, Any] = {}
        for kind in set(self.config.layer_types):
            cos, sin = self.transformer_model.rotary_emb(hidden_states, position, kind)  # (1, tokens, head size)
            shared[f"{kind}_cos"], shared[f"{kind}_sin"] = cos, sin
        band = self._band(hidden_states)
        if band is not None:
            shared["local_band"] = masks.additive(band, hidden_states.dtype)
        return shared

    def _band(self, hidden_states: Tensor) -> Tensor | None:
        length, reach = hidden_states.shape[1], self.config.sliding_window
        if "sliding_attention" not in self.config.layer_types:
            return None
        # A traced graph takes inputs of every length, whatever length it is traced at.
        if not (torch.jit.is_tracing() or torch.compiler.is_compiling()) and length - 1 <= reach:
            return None
        return masks.local_band(length, reach, hidden_states.device)

    def block(self, number: int, state: BackboneState) -> Tensor:
        kind = self.config.layer_types[number - 1]
        mask = state.batched.get("key_mask")
        if kind == "sliding_attention" and "local_band" in state.shared:
            mask = state.batched.get("local_mask", state.shared["local_band"])
        output: Tensor = self.block_module(number)(
            state.hidden_states,
            attention_mask=mask,
            position_embeddings=(state.shared[f"{kind}_cos"], state.shared[f"{kind}_sin"]),
        )
        return self.transformer_model.final_norm(output) if number == self.num_layers else output
