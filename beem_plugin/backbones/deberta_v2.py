"""DeBERTa v2 and v3: attention to content and to relative positions, and a convolution beside the first block."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.transformer import TransformerBackbone


class DebertaV2Backbone(TransformerBackbone):
    """`model_type` `deberta-v2`, which DeBERTa v3 models have, too."""

    attn_implementation: ClassVar[str] = "eager"
    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {"allowed": (3,), "real": (1,), "relative_pos": (1, 2)}
    extra_config_keys: ClassVar[tuple[str, ...]] = (
        "attention_head_size",
        "conv_act",
        "conv_groups",
        "conv_kernel_size",
        "embedding_size",
        "norm_rel_ebd",
        "position_buckets",
        "share_att_key",
    )

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        # Relative positions are bucketed and clamped; only absolute ones have a table.
        return config.max_position_embeddings if config.position_biased_input else None

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        input_ids, mask = batch["input_ids"], batch.get("attention_mask")
        token_types = batch.get("token_type_ids")
        # The embeddings of padding are zero, so that the convolution may read beyond a sample's end.
        return self.transformer_model.embeddings(input_ids, token_type_ids=token_types, mask=mask)

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        state = super().make_state(hidden_states, attention_mask)
        if not state.batched:
            # These blocks require a mask.
            state.batched = self.batched_extras(hidden_states, state.attention_mask)
        return state

    def batched_extras(self, hidden_states: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        # One row a sample. transformers also masks the queries at padding, without effect on real tokens.
        batched = {"allowed": attention_mask[:, None, None, :]}
        if self.transformer_model.encoder.conv is not None:
            batched["real"] = attention_mask.long()  # (batch, tokens)
        return batched

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        encoder = self.transformer_model.encoder
        if not encoder.relative_attention:
            return {}
        relative_pos = encoder.get_rel_pos(hidden_states)  # (1, tokens, tokens)
        return {"relative_pos": relative_pos, "rel_embeddings": encoder.get_rel_embedding()}

    def block(self, number: int, state: BackboneState) -> Tensor:
        encoder = self.transformer_model.encoder
        output: Tensor = self.block_module(number)(
            state.hidden_states,
            state.batched["allowed"],
            relative_pos=state.shared.get("relative_pos"),
            rel_embeddings=state.shared.get("rel_embeddings"),
        )[0]
        if number == 1 and encoder.conv is not None:
            output = encoder.conv(state.hidden_states, output, state.batched["real"])
        return output
