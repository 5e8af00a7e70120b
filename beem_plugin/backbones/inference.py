"""A snapshot of a backbone for inference: plain tensors, and Triton kernels where they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules import module as torch_module

from beem_plugin.backbones import masks
from beem_plugin.backbones.backbone import Backbone, BackboneState
from beem_plugin.backbones.families import FAMILIES
from beem_plugin.backbones.post_norm import (
    FAMILIES as POST_NORM_FAMILIES,
    Embeddings,
    PostNormBlock,
    UnexpectedModule,
    find,
)
from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.kernels.add_norm import MAX_SIZE, add_norm, add_norm_reference
from beem_plugin.kernels.attention import HEAD_SIZES, MAX_TOKENS, attention
from beem_plugin.kernels.launch import triton
from beem_plugin.kernels.packed import Packed

KEY_MASK = "key_mask"
POSITION_BIAS = "position_bias"
TOKEN_DIMS = {KEY_MASK: (3,), POSITION_BIAS: (2, 3)}
INTERFACE = ("embed", "make_state", "layer", "embed_tokens", "block")


class InferenceBackbone:
    """
    The blocks of a post-norm encoder in evaluation mode, without modules: transformers' modules spend most of a small
    batch's time in Python, and as many small GPU kernels as matrix products. It has the interface of `Backbone` and, on
    a GPU in half precision, also takes packed samples. Kernels are used by default where `kernels_serve`.

    It is a snapshot of a backbone on its device, in its precision: most tensors are those of the backbone, some are
    copies. After a change of the backbone's weights, modules, hooks, device or precision, make another one.
    """

    token_dims = TOKEN_DIMS

    def __init__(self, backbone: TransformerBackbone, use_kernels: bool | None = None) -> None:
        paths = POST_NORM_FAMILIES[backbone.config.model_type]
        model = backbone.transformer_model
        self.config, self.model_name = backbone.config, backbone.model_name
        self.num_layers, self.hidden_size = backbone.num_layers, backbone.hidden_size
        self.max_tokens = backbone.max_tokens
        self.check_length = backbone.check_length
        modules = [backbone.block_module(number) for number in range(1, self.num_layers + 1)]
        # ALBERT's blocks share their weights.
        blocks = {id(module): PostNormBlock.of(module, paths) for module in modules}
        self.blocks = [blocks[id(module)] for module in modules]
        projection = None if paths.projection is None else find(model, paths.projection)
        self.embeddings = Embeddings.of(model.embeddings, projection, backbone.position_padding(backbone.config))
        bias = backbone.position_bias(self.max_tokens or 0)
        self.position_bias = None if bias is None else bias.detach()
        weight = self.blocks[0].query_key_value[0]
        head_size = self.hidden_size // self.blocks[0].num_heads
        self.use_kernels = kernels_serve(weight, head_size) if use_kernels is None else use_kernels
        self.add_norm = add_norm if self.use_kernels else add_norm_reference

    def embed(self, batch: Mapping[str, Tensor]) -> BackboneState:
        """See `Backbone.embed`."""
        input_ids = batch["input_ids"]
        self.check_length(input_ids.shape[1])
        hidden_states = self.embeddings(input_ids, batch.get("token_type_ids"), None, self.add_norm)
        return self.make_state(hidden_states, batch.get("attention_mask"))

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        """See `Backbone.make_state`."""
        tokens = hidden_states.shape[1]
        batched = {}
        if attention_mask is None:
            attention_mask = hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.bool)
        else:
            attention_mask = attention_mask.bool()
            if masks.may_have_padding(attention_mask):
                by_kernel = self.use_kernels and tokens <= MAX_TOKENS
                batched[KEY_MASK] = (
                    attention_mask[:, None, None] if by_kernel else masks.key_mask(attention_mask, hidden_states.dtype)
                )
        return BackboneState(hidden_states, attention_mask, batched, self._shared(tokens), self.token_dims)

    def can_pack(self, longest: int) -> bool:
        """Whether samples of at most `longest` tokens can be packed."""
        return self.use_kernels and longest <= MAX_TOKENS

    def embed_packed(self, tokens: Mapping[str, Tensor], packed: Packed) -> BackboneState:
        """The state before block 1 of packed samples."""
        self.check_length(packed.longest)
        token_type_ids = tokens.get("token_type_ids")
        hidden_states = self.embeddings(
            tokens["input_ids"][None],
            None if token_type_ids is None else token_type_ids[None],
            packed,
            self.add_norm,
        )
        return self.packed_state(hidden_states, packed)

    def packed_state(self, hidden_states: Tensor, packed: Packed) -> BackboneState:
        """The state, at any depth, of packed samples with hidden states `(1, tokens of all samples, hidden)`."""
        attention_mask = hidden_states.new_ones((1, 1), dtype=torch.bool).expand(hidden_states.shape[:2])
        return BackboneState(hidden_states, attention_mask, {}, self._shared(packed.longest), self.token_dims, packed)

    def layer(self, number: int, state: BackboneState) -> BackboneState:
        """See `Backbone.layer`."""
        block, hidden_states = self.blocks[number - 1], state.hidden_states
        joined = functional.linear(hidden_states, *block.query_key_value)
        if state.packed is not None or (self.use_kernels and hidden_states.shape[1] <= MAX_TOKENS):
            attended = self._attend_by_kernel(joined, block.num_heads, state)
        else:
            attended = self._attend(joined, block.num_heads, state)
        attended = functional.linear(attended, *block.attention_output)
        attended = self.add_norm(attended, hidden_states, *block.attention_norm)
        output = functional.linear(block.activation(functional.linear(attended, *block.up)), *block.down)
        return state.advance(self.add_norm(output, attended, *block.output_norm))

    def _attend_by_kernel(self, joined: Tensor, num_heads: int, state: BackboneState) -> Tensor:
        query, key, value = joined.chunk(3, dim=2)
        mask = state.attention_mask.contiguous() if KEY_MASK in state.batched else None
        return attention(query, key, value, num_heads, state.shared.get(POSITION_BIAS), mask, state.packed)

    def _attend(self, joined: Tensor, num_heads: int, state: BackboneState) -> Tensor:
        batch, tokens, _ = joined.shape
        query, key, value = joined.view(batch, tokens, 3, num_heads, -1).permute(2, 0, 3, 1, 4).unbind()
        mask, bias = state.batched.get(KEY_MASK), state.shared.get(POSITION_BIAS)
        if bias is not None:
            mask = bias if mask is None else bias + mask
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2).reshape(batch, tokens, -1)

    def _shared(self, tokens: int) -> dict[str, Any]:
        # Positions are relative: the bias of few tokens is a corner of that of many.
        return {} if self.position_bias is None else {POSITION_BIAS: self.position_bias[:, :, :tokens, :tokens]}


def inference_backbone(backbone: Backbone, use_kernels: bool | None = None) -> InferenceBackbone | None:
    """`None` where the backbone itself must run: in training, another family, or with altered modules."""
    if not isinstance(backbone, TransformerBackbone) or backbone.training:
        return None
    model_type = backbone.config.model_type
    if model_type not in POST_NORM_FAMILIES or type(backbone) is not FAMILIES[model_type]:
        return None
    if any(name in vars(backbone) for name in INTERFACE) or any(map(is_altered, backbone.modules())):
        return None
    parameters = list(backbone.parameters())
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        return None
    try:
        return InferenceBackbone(backbone, use_kernels)
    except UnexpectedModule:
        return None


def is_altered(module: torch.nn.Module) -> bool:
    """Whether a call of the module does more, or something else, than its published class does."""
    return (
        bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        or bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
        or type(module).__module__.split(".")[0] not in ("torch", "transformers", "beem_plugin")
    )


def kernels_serve(weight: Tensor, head_size: int) -> bool:
    """Whether the Triton kernels serve a backbone with this weight `(3 hidden, hidden)`: half precision on a GPU."""
    return (
        triton is not None
        and weight.is_cuda
        and weight.dtype in (torch.float16, torch.bfloat16)
        and head_size in HEAD_SIZES
        and weight.shape[1] <= MAX_SIZE
    )
