"""Base class of the family adapters: a transformers encoder that runs block by block."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones import masks
from beem_plugin.backbones.backbone import Backbone, BackboneState
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write


class TransformerBackbone(Backbone):
    """
    An encoder of the transformers library. Block by block it gives the hidden states of the model's full forward pass
    at every real token; hidden states at padding positions may differ. `model_name` is `None` for random weights;
    `pooler` has weight and bias of the pretrained first-token pooler.
    """

    attn_implementation: ClassVar[str] = "sdpa"
    # Names in `batched` and `shared` of the family's states; see BackboneState.
    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {"key_mask": (3,)}
    blocks_path: ClassVar[str] = "encoder.layer"
    # Keys that the family's modules read from the configuration although its class does not declare them.
    extra_config_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, transformer_model: Any, model_name: str | None = None, pooler: tuple[Tensor, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.transformer_model = transformer_model
        self.config = transformer_model.config
        self.model_name = model_name
        self.num_layers = self.depth(self.config)
        self.hidden_size = self.config.hidden_size
        self.max_tokens = self.longest_input(self.config)
        # In a tuple, and so not in the state dict: exits that use the pooler copy it.
        self._pooler = pooler

    @classmethod
    def depth(cls, config: Any) -> int:
        """The number of blocks of a model with this configuration."""
        return config.num_hidden_layers

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        """Changes `config` to that of the model's first `num_layers` blocks."""
        config.num_hidden_layers = num_layers

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        """The padding id if positions count the other tokens, from this id + 1; `None` if they count all, from 0."""
        return None

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        """Maximum number of tokens of an input; `None` without a table of positions."""
        padding = cls.position_padding(config)
        return config.max_position_embeddings - (0 if padding is None else padding + 1)

    @classmethod
    def pooler_of(cls, transformer_model: Any) -> Any | None:
        """The linear layer of the model's first-token pooler."""
        pooler = getattr(transformer_model, "pooler", None)
        return None if pooler is None else pooler.dense

    def embed(self, batch: Mapping[str, Tensor]) -> BackboneState:
        self.check_length(batch["input_ids"].shape[1])
        return self.make_state(self.embed_tokens(batch), batch.get("attention_mask"))

    def check_length(self, tokens: int) -> None:
        """Raises a `ConfigurationError` for an input that is longer than the table of positions."""
        if self.max_tokens is not None and tokens > self.max_tokens:
            # On a GPU the table look-up would fail with a device-side assertion that names no cause.
            raise ConfigurationError(
                f"tokenizer.max_length: an input has {tokens} tokens, {self.model_name or self.config.model_type} "
                f"takes at most {self.max_tokens}"
            )

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        if attention_mask is None:
            attention_mask = hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.bool)
            padded = False
        else:
            attention_mask = attention_mask.bool()
            padded = masks.may_have_padding(attention_mask)
        batched = self.batched_extras(hidden_states, attention_mask) if padded else {}
        shared = self.shared_extras(hidden_states)
        return BackboneState(hidden_states, attention_mask, batched, shared, self.token_dims)

    def layer(self, number: int, state: BackboneState) -> BackboneState:
        return state.advance(self.block(number, state))

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """`(batch, tokens, hidden)` input of block 1."""
        return self.transformer_model.embeddings(batch["input_ids"])

    def block(self, number: int, state: BackboneState) -> Tensor:
        """`(batch, tokens, hidden)` output of block `number`."""
        output: Tensor = self.block_module(number)(state.hidden_states, state.batched.get("key_mask"))
        return output

    def block_module(self, number: int) -> Any:
        """The transformers module of block `number`."""
        return attrgetter(self.blocks_path)(self.transformer_model)[number - 1]

    def position_bias(self, tokens: int) -> Tensor | None:
        """`(1, heads, tokens, tokens)` added to the scores of every block, where the family has such a bias."""
        return None

    def batched_extras(self, hidden_states: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Inputs of the blocks that depend on the padding."""
        return {"key_mask": masks.key_mask(attention_mask, hidden_states.dtype)}

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        """Inputs of the blocks that do not depend on the samples."""
        return {}

    def pretrained_pooler(self) -> tuple[Tensor, Tensor] | None:
        return self._pooler

    def save_config(self, folder: str | Path) -> None:
        """Writes `config.json`, from which the model is rebuilt with `model_name: folder, load_weights: false`."""
        with atomic_write(Path(folder) / "config.json") as file:
            file.write(self.config.to_json_string())
