"""The post-norm families: BERT and those whose blocks have its structure."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.common.errors import ConfigurationError


class BertBackbone(TransformerBackbone):
    """`model_type` `bert`."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids"))


class RobertaBackbone(BertBackbone):
    """`model_type` `roberta`, `xlm-roberta` or `camembert`: positions count from the padding id."""

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        return config.pad_token_id


class ElectraBackbone(BertBackbone):
    """`model_type` `electra`: the embeddings may be narrower than the blocks."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        embedded = super().embed_tokens(batch)
        # The projection exists only where the two widths differ.
        project = getattr(self.transformer_model, "embeddings_project", None)
        return embedded if project is None else project(embedded)


class DistilBertBackbone(TransformerBackbone):
    """`model_type` `distilbert`: no token types."""

    blocks_path: ClassVar[str] = "transformer.layer"


class AlbertBackbone(TransformerBackbone):
    """
    `model_type` `albert`.

    A group may have several inner layers (`inner_group_num`, 1 in every published model). Each of them is a block, as
    each has its own entry in the hidden states that transformers returns.
    """

    @classmethod
    def depth(cls, config: Any) -> int:
        return config.num_hidden_layers * config.inner_group_num

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        # A group computes `num_hidden_layers / num_hidden_groups` consecutive calls. A shorter model keeps this mapping
        # only if it ends with a group; with a single group it can end anywhere.
        calls = config.num_hidden_layers / config.num_hidden_groups
        step = config.inner_group_num * (1 if config.num_hidden_groups == 1 else calls)
        if num_layers % step:
            raise ConfigurationError(
                f"model.encoder.backbone.num_layers: found {num_layers}, allowed: multiples of {step:g}, the blocks "
                "of a group of shared weights"
            )
        config.num_hidden_layers = num_layers // config.inner_group_num
        if config.num_hidden_groups > 1:
            config.num_hidden_groups = round(config.num_hidden_layers / calls)

    @classmethod
    def pooler_of(cls, transformer_model: Any) -> Any | None:
        return transformer_model.pooler

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        model = self.transformer_model
        embedded = model.embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids"))
        return model.encoder.embedding_hidden_mapping_in(embedded)

    def block_module(self, number: int) -> Any:
        call, inner = divmod(number - 1, self.config.inner_group_num)
        # The expression of transformers, so that rounding gives the same group.
        group = int(call / (self.config.num_hidden_layers / self.config.num_hidden_groups))
        return self.transformer_model.encoder.albert_layer_groups[group].albert_layers[inner]


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
