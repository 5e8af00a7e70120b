"""The weights of all decoder blocks in one tensor per layer; layer normalisations are folded into the next layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.pytorch_utils import Conv1D

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.exits.vocabulary_heads import TiedHead, UntiedHead

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256


@dataclass
class Linear:
    """
    A linear layer of every block, after a layer normalisation if `normed`. With the normalisation
    `(x - mean) / std * gain + shift`, gain and shift are folded into `weight` and `bias`, and each column of `weight`
    sums to 0, which subtracts the mean: the output is `x @ weight / std + bias`. A kernel can then multiply while it
    still sums up the variance.

    # Parameters

    weight : `Tensor`
        `(blocks, inputs, outputs)`
    bias : `Tensor`
        `(blocks, outputs)`
    normed : `bool`
    eps : `float`
        Added to the variance.
    """

    weight: Tensor
    bias: Tensor
    normed: bool = False
    eps: float = 0.0

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]


@dataclass
class Vocabulary(Linear):
    """
    The vocabulary heads: a layer normalisation an exit, and one matrix for all exits or one each. Gains cannot be
    folded into a shared matrix; the logits are `boost / std * ((x * gain) @ weight^T - mean * slope) + bias`. `boost`
    is a power of 2 that keeps `gain` small, without which half precision might overflow.

    # Parameters

    weight : `Tensor`
        `(groups, vocabulary, inputs)`; `groups` is 1 if all exits share a matrix, else the number of exits.
    bias, slope : `Tensor`
        `(exits, vocabulary)` float32
    gain : `Tensor`
        `(exits, inputs)`
    boost : `Tensor`
        `(exits,)` float32
    """

    gain: Tensor = None  # type: ignore[assignment]  # the fields before have defaults
    slope: Tensor = None  # type: ignore[assignment]
    boost: Tensor = None  # type: ignore[assignment]

    @property
    def groups(self) -> int:
        return len(self.weight)


class DecoderWeights:
    """
    Copies of the weights of a decoder that `unsupported` accepts.

    # Parameters

    network : `CaptionNetwork`
    sees_images : `bool`
    """

    def __init__(self, network: Any, sees_images: bool) -> None:
        decoder: Gpt2Decoder = network.backbone.decoder
        blocks = list(decoder.blocks)

        def linear(*path: str, norm: str = "") -> Linear:
            found = [block.get_submodule(".".join(path)) for block in blocks]
            weight, bias = torch.stack([one.weight for one in found]), torch.stack([one.bias for one in found])
            return folded(weight, bias, [getattr(block, norm) for block in blocks]) if norm else Linear(weight, bias)

        self.attention_in, self.attention_out = linear("attn", "c_attn", norm="ln_1"), linear("attn", "c_proj")
        if sees_images:
            self.cross_in = linear("crossattention", "q_attn", norm="ln_cross_attn")
            self.cross_out = linear("crossattention", "c_proj")
        self.mlp_in, self.mlp_out = linear("mlp", "c_fc", norm="ln_2"), linear("mlp", "c_proj")
        matrices = [network.exit_weight(number) for number in range(1, network.num_exits + 1)]
        shared = all(matrix is matrices[0] for matrix in matrices)
        self.vocabulary = vocabulary_of(
            matrices[0].unsqueeze(0) if shared else torch.stack(matrices), [head.norm for head in network.exits]
        )
        transformer = decoder.language_model.transformer
        self.token_embeddings, self.position_embeddings = transformer.wte.weight, transformer.wpe.weight
        scales = [decoder.scale(number) for number in range(1, len(blocks) + 1)]
        self.scales = torch.tensor(scales, device=self.token_embeddings.device)

    @staticmethod
    def unsupported(network: Any, sees_images: bool) -> str | None:
        """The first part of the network that the kernels do not compute; `None` if they compute all of it."""
        decoder: Gpt2Decoder = network.backbone.decoder
        transformer = decoder.language_model.transformer
        if network.shortlist is not None:
            return "a shortlist"
        if any(type(head) not in (TiedHead, UntiedHead) for head in network.exits):
            return "a head other than 'tied' and 'untied'"
        dtypes = {
            parameter.dtype for part in (decoder.language_model, network.exits) for parameter in part.parameters()
        }
        if len(dtypes) > 1 or not dtypes <= set(DTYPES) or decoder.head_size > LARGEST_HEAD:
            return f"parameters of {', '.join(map(str, dtypes))}, heads of size {decoder.head_size}"
        linears: list[Any] = []
        norms = [head.norm for head in network.exits]
        for block in decoder.blocks:
            attentions = [block.attn, *([block.crossattention] if sees_images else [])]
            if any(type(one) is not GPT2Attention for one in attentions) or type(block.mlp) is not GPT2MLP:
                return "an attention or an MLP that is not GPT-2's"
            if type(block.mlp.act) is not torch.nn.GELU or block.mlp.act.approximate != "tanh":
                return "an activation other than 'gelu_new'"
            linears += [block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj]
            norms += [block.ln_1, block.ln_2]
            if sees_images:
                linears += [block.crossattention.q_attn, block.crossattention.c_proj]
                norms.append(block.ln_cross_attn)
        if any(type(one) is not Conv1D for one in linears) or not all(map(is_plain_norm, norms)):
            return "a linear layer or a normalisation that is not GPT-2's"
        if len({norm.eps for norm in norms}) > 1 or len({block.mlp.c_fc.nf for block in decoder.blocks}) > 1:
            return "blocks of different shapes"
        if any(type(one) is not torch.nn.Embedding for one in (transformer.wte, transformer.wpe)):
            return "embeddings that are not GPT-2's"
        return None


def is_plain_norm(norm: Any) -> bool:
    return type(norm) is torch.nn.LayerNorm and norm.weight is not None and norm.bias is not None


def folded(weight: Tensor, bias: Tensor, norms: list[Any]) -> Linear:
    """`weight` `(blocks, inputs, outputs)` and `bias` `(blocks, outputs)` after layer normalisations."""
    gain = torch.stack([norm.weight for norm in norms]).double()
    shift = torch.stack([norm.bias for norm in norms]).double()
    scaled = gain.unsqueeze(2) * weight.double()
    moved = torch.einsum("bi,bio->bo", shift, weight.double()) + bias.double()
    return Linear((scaled - scaled.mean(1, keepdim=True)).to(weight.dtype), moved.float(), True, norms[0].eps)


def vocabulary_of(weight: Tensor, norms: list[Any]) -> Vocabulary:
    """`weight` `(groups, vocabulary, inputs)` after one layer normalisation per exit."""
    gain = torch.stack([norm.weight for norm in norms]).double()
    shift = torch.stack([norm.bias for norm in norms]).double()
    boost = 2 ** gain.abs().amax(1).clamp_min(1e-30).log2().ceil()  # dividing by a power of 2 is exact
    gain = (gain / boost.unsqueeze(1)).to(weight.dtype)

    def times(rows: Tensor) -> Tensor:
        return torch.stack([row @ weight[min(exit, len(weight) - 1)].double().t() for exit, row in enumerate(rows)])

    bias, slope = times(shift).float(), times(gain.double()).float()
    return Vocabulary(weight, bias, True, norms[0].eps, gain, slope, boost.float())
