"""The base of the family adapters: a transformers encoder, stepped block by block."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones import block_kernels, masks
from beem_plugin.backbones.backbone import Backbone, BackboneState
from beem_plugin.backbones.direct_block import DirectBlock
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings
from beem_plugin.backbones.packed import PACKED, Packed
from beem_plugin.backbones.untouched import is_written_down
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write

logger = logging.getLogger(__name__)


@Backbone.register("transformer", constructor="from_model")
class TransformerBackbone(Backbone):
    """
    A pretrained or randomly initialised encoder of the transformers library. Stepping it gives the hidden states of
    its full forward pass, layer by layer, at every real token; what stands at padding positions may differ.

    Registered as a `Backbone` with name `"transformer"`, which is the default. The adapter is chosen by the model's
    `model_type` (see `families.py`). Either `model_name` or `config` is given.

    # Parameters

    model_name : `str`, optional (default = `None`)
        A model of the hub, a folder, or `"package:minilm"`.
    config : `dict`, optional (default = `None`)
        `{"model_type": "bert", ...}`: random weights in this shape, drawn from torch's global generator.
    load_weights : `bool`, optional (default = `True`)
        False builds the model from its configuration alone, for a state dict that is loaded afterwards.
    config_overrides : `dict`, optional (default = `None`)
        Entries of the model's configuration to replace, such as `{"hidden_dropout_prob": 0.0}`.
    num_layers : `int`, optional (default = `None`)
        Keep only the first so many layers. None keeps all.
    """

    attn_implementation: ClassVar[str] = "sdpa"
    # Names in `batched` and `shared` of the family's states; see BackboneState.
    token_dims: ClassVar[Mapping[str, tuple[int, ...]]] = {"key_mask": (3,)}
    # Keys the family's modules read from the configuration although its class does not declare them.
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
        self._direct_blocks: dict[int, DirectBlock | None] = {}
        # In a tuple, out of the state dict's sight: exits that want the pooler copy it, the others do not pay for it.
        self._pooler = pooler

    @classmethod
    def from_model(
        cls,
        model_name: str | None = None,
        config: dict | None = None,
        load_weights: bool = True,
        config_overrides: dict | None = None,
        num_layers: int | None = None,
    ) -> TransformerBackbone:
        """Builds the adapter of the model's family; see the class for the parameters."""
        # Inside, because the table of families imports the adapters and they import this module.
        from beem_plugin.backbones.families import build

        return build(model_name, config, load_weights, config_overrides, num_layers)

    @classmethod
    def depth(cls, config: Any) -> int:
        """How many blocks, and so how many exits, a model of this configuration has."""
        return config.num_hidden_layers

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        """Changes `config` into that of the model's first `num_layers` blocks."""
        config.num_hidden_layers = num_layers

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        """Maximum number of tokens of an input; `None` without a table of positions."""
        padding = cls.position_padding(config)
        return config.max_position_embeddings - (0 if padding is None else padding + 1)

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        """The padding id if positions count the other tokens, from this id + 1; `None` if they count all, from 0."""
        return None

    @classmethod
    def pooler_of(cls, transformer_model: Any) -> Any | None:
        """The linear layer of the model's first-token pooler."""
        pooler = getattr(transformer_model, "pooler", None)
        return None if pooler is None else pooler.dense

    def embed(self, batch: Mapping[str, Tensor]) -> BackboneState:
        self.check_length(batch["input_ids"].shape[1])
        embedded = self._embed_directly(batch)
        return self.make_state(
            self.embed_tokens(batch) if embedded is None else self.after_embeddings(embedded),
            batch.get("attention_mask"),
        )

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

    def can_pack(self, longest: int) -> bool:
        """Whether samples of so many tokens at most can be computed packed, and will be faster so."""
        embeddings = self._direct_embeddings
        if self.training or torch.is_grad_enabled() or embeddings is None or longest > block_kernels.MOST_TOKENS:
            return False
        weight = embeddings.words.weight
        if not (embeddings.is_usable and embeddings.untouched and block_kernels.serves(weight)):
            return False
        blocks = [self._direct(number, weight.device.type) for number in range(1, self.num_layers + 1)]
        return all(
            block is not None and block.uses_kernels and block_kernels.serves(block.query.weight, block.num_heads)
            for block in blocks
        )

    def embed_packed(self, tokens: Mapping[str, Tensor], sources: Tensor, packed: Packed) -> BackboneState:
        """
        The state before block 1 of samples that `can_pack`; the other parameters as `DirectEmbeddings.pack`.

        # Parameters

        packed : `Packed`
        """
        assert self._direct_embeddings is not None, "can_pack has been asked"
        return self.packed_state(self.after_embeddings(self._direct_embeddings.pack(tokens, sources, packed)), packed)

    def packed_state(self, hidden_states: Tensor, packed: Packed) -> BackboneState:
        """A state, of any depth, with hidden states `(1, tokens, hidden)` of packed samples."""
        mask = hidden_states.new_ones((1, 1), dtype=torch.bool).expand(hidden_states.shape[:2])
        # The blocks share tables for as many tokens as a sample has, not for as many as all have.
        shared = self.shared_extras(hidden_states[:, :1].expand(1, packed.longest, -1))
        return BackboneState(hidden_states, mask, {}, {**shared, PACKED: packed}, self.token_dims)

    def layer(self, number: int, state: BackboneState) -> BackboneState:
        if PACKED in state.shared:
            return state.advance(self._run_packed(number, state, state.shared[PACKED]))
        direct = (
            None if self.training or torch.is_grad_enabled() else self._direct(number, state.hidden_states.device.type)
        )
        if direct is None:
            return state.advance(self.block(number, state))
        return state.advance(self._run_direct(number, direct, state))

    def _run_packed(self, number: int, state: BackboneState, packed: Packed) -> Tensor:
        direct = self._direct(number, state.hidden_states.device.type)
        if direct is not None and direct.uses_kernels:
            return direct.with_kernels(state.hidden_states, self.direct_bias(state), None, packed)
        # Somebody has begun to listen to its modules, which know no packed samples.
        hidden_states, real = packed.padded(state.hidden_states)
        return self.block(number, self.make_state(hidden_states, real))[real][None]

    def _run_direct(self, number: int, direct: DirectBlock, state: BackboneState) -> Tensor:
        """The block's output in the fastest way that says what its modules say, which may be theirs."""
        hidden_states, padded = state.hidden_states, "key_mask" in state.batched
        input_kind = (hidden_states.dtype, hidden_states.device, padded)
        if direct.uses_kernels and block_kernels.can_run(hidden_states, direct.num_heads):
            kind: tuple[Any, ...] = ("with kernels", block_kernels.block_of(hidden_states.shape[1]), *input_kind)
            bias, real = self.direct_bias(state), state.attention_mask if padded else None
            if kind in direct.agreed:
                return direct.with_kernels(hidden_states, bias, real)
            try:
                said = direct.with_kernels(hidden_states, bias, real)
                if direct.agrees(kind, said, self.block(number, state), state.attention_mask):
                    return said
            except Exception as error:  # Triton and its compiler fail in many ways
                first_line = (str(error).strip().splitlines() or [""])[0]
                logger.warning("a block's kernels are not used: %s: %s", type(error).__name__, first_line)
            direct.uses_kernels = False
        said = direct.with_operations(hidden_states, self.direct_mask(state))
        kind = ("with operations", *input_kind)
        if kind in direct.agreed:
            return said
        expected = self.block(number, state)
        if direct.agrees(kind, said, expected, state.attention_mask):
            return said
        self._direct_blocks[number] = None
        return expected

    def _direct(self, number: int, device_type: str) -> DirectBlock | None:
        """Block `number` without its modules, where they need not be called; see `DirectBlock`."""
        if number not in self._direct_blocks:
            self._direct_blocks[number] = self.direct_block(number)
        direct = self._direct_blocks[number]
        if direct is None or not direct.untouched or is_written_down(device_type):
            return None
        return direct

    def _embed_directly(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """The embeddings without their modules; `None` where these must be called."""
        device_type = batch["input_ids"].device.type
        if device_type == "cpu" or self.training or torch.is_grad_enabled() or is_written_down(device_type):
            return None
        return None if self._direct_embeddings is None else self._direct_embeddings(batch)

    @cached_property
    def _direct_embeddings(self) -> DirectEmbeddings | None:
        return self.direct_embeddings()

    def direct_embeddings(self) -> DirectEmbeddings | None:
        """The embeddings as one kernel, for inference on a GPU; `None` where they are not known."""
        return None

    def after_embeddings(self, embedded: Tensor) -> Tensor:
        """`(batch, tokens, hidden)` input of block 1, given the embeddings."""
        return embedded

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """`(batch, tokens, hidden)` input of block 1."""
        raise NotImplementedError(f"{type(self).__name__} does not define embed_tokens")

    def block_module(self, number: int) -> Any:
        """The transformers module of block `number`."""
        return self.transformer_model.encoder.layer[number - 1]

    def position_bias(self, tokens: int) -> Tensor | None:
        """`(1, heads, tokens, tokens)` added to the scores of every block, where the family has such a bias."""
        return None

    def block(self, number: int, state: BackboneState) -> Tensor:
        """`(batch, tokens, hidden)` output of block `number`."""
        raise NotImplementedError(f"{type(self).__name__} does not define block")

    def direct_block(self, number: int) -> DirectBlock | None:
        """The block's operations, for inference; `None` where they are not known."""
        return None

    def direct_bias(self, state: BackboneState) -> Tensor | None:
        """`(1, heads, tokens, tokens)` that a direct block adds to the scores of every sample."""
        return None

    def direct_mask(self, state: BackboneState) -> Tensor | None:
        """What a direct block without kernels adds to its scores: the bias, and what hides padding."""
        return self.key_mask(state)

    def key_mask(self, state: BackboneState) -> Tensor | None:
        """`(batch, 1, 1, tokens)` additive mask that hides padding from modules; `None` where there is none."""
        mask = state.batched.get("key_mask")
        return (
            masks.additive(mask, state.hidden_states.dtype) if mask is not None and mask.dtype == torch.bool else mask
        )

    def batched_extras(self, hidden_states: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """What the blocks need to know of a batch that has padding."""
        first = self._direct_blocks.get(1)
        if first is not None and first.uses_kernels and block_kernels.can_run(hidden_states, first.num_heads):
            # Kernels read the attention mask itself. A module that is called after all gets its mask from `key_mask`.
            return {"key_mask": attention_mask[:, None, None, :]}
        return {"key_mask": masks.key_mask(attention_mask, hidden_states.dtype)}

    def shared_extras(self, hidden_states: Tensor) -> dict[str, Any]:
        """What the blocks need whatever the samples are."""
        return {}

    def pretrained_pooler(self) -> tuple[Tensor, Tensor] | None:
        return self._pooler

    def save_config(self, folder: str | Path) -> None:
        """Writes `config.json` to `folder`: with it as `model_name` and `load_weights` false the shape is rebuilt."""
        with atomic_write(Path(folder) / "config.json") as file:
            file.write(self.config.to_json_string())
