"""The weights of all decoder blocks in one tensor per layer; layer normalisations are folded into the next layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import GELU, Embedding, LayerNorm
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.pytorch_utils import Conv1D

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.exits.vocabulary_heads import TiedHead, UntiedHead

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
PARTS = {
    "attn": GPT2Attention,
    "mlp": GPT2MLP,
    "mlp.act": GELU,
    **dict.fromkeys(("ln_1", "ln_2"), LayerNorm),
    **dict.fromkeys(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"), Conv1D),
}
"""Types of the parts of a block that the kernels compute; a part comes after those that contain it."""
CROSS_PARTS = {
    "crossattention": GPT2Attention,
    "ln_cross_attn": LayerNorm,
    **dict.fromkeys(("crossattention.q_attn", "crossattention.c_proj"), Conv1D),
}


@dataclass
class Linear:
    """
    A linear layer of every block: `weight` `(blocks, outputs, inputs)` and `bias` `(blocks, outputs)`. After layer
    normalisations `(x - mean) / std * gain + shift` (if `normed`), gain and shift are folded into `weight` and `bias`,
    and the inputs' weights of each output sum to 0, which subtracts the mean: the output is `weight @ x / std + bias`.
    A kernel can then multiply while it still sums up the variance. The outputs of one input are contiguous: a kernel
    that transposes float32 matrices is half as fast.

    Gains cannot be folded into the vocabulary matrix that exits share; with `gain` `(exits, inputs)`, `slope` `(exits,
    vocabulary)` float32 and `boost` `(exits,)` float32 the output is `boost / std * (weight @ (x * gain) - mean *
    slope) + bias`. `boost` is a power of 2 that keeps `gain` small, without which half precision might overflow.
    `weight` is then one matrix, and `bias` `(exits, vocabulary)`.
    """

    weight: Tensor
    bias: Tensor
    normed: bool = False
    eps: float = 0.0
    gain: Tensor | None = None
    slope: Tensor | None = None
    boost: Tensor | None = None

    GAINS = ("gain", "slope", "boost")

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]

    @property
    def groups(self) -> int:
        return len(self.weight)

    def __call__(self, value: Tensor, block: int, norm: Tensor) -> Tensor:
        """The reference in float32: `(tokens, inputs)` through `block`; `norm` `(tokens,)` is each token's exit - 1."""
        std = (value.var(1, keepdim=True, correction=0) + self.eps).sqrt() if self.normed else 1
        weight = self.weight[block].float().t()
        if self.gain is None or self.slope is None or self.boost is None:
            return value @ weight / std + self.bias[block]
        total = (value * self.gain[norm].float()) @ weight - value.mean(1, keepdim=True) * self.slope[norm]
        return total * (self.boost[norm].unsqueeze(1) / std) + self.bias[norm]


class DecoderWeights:
    """Copies of the weights of a decoder that `unsupported` accepts."""

    def __init__(self, network: Any, sees_images: bool) -> None:
        decoder: Gpt2Decoder = network.backbone.decoder
        blocks = list(decoder.blocks)

        def linear(path: str, norm: str = "") -> Linear:
            found = [block.get_submodule(path) for block in blocks]
            weights = [one.weight.t() for one in found]  # transformers' Conv1D has (inputs, outputs)
            biases = [one.bias for one in found]
            if norm:
                return folded(weights, biases, [getattr(block, norm) for block in blocks])
            return Linear(stacked(weights), torch.stack(biases))

        self.attention_in, self.attention_out = linear("attn.c_attn", "ln_1"), linear("attn.c_proj")
        if sees_images:
            self.cross_in = linear("crossattention.q_attn", "ln_cross_attn")
            self.cross_out = linear("crossattention.c_proj")
        self.mlp_in, self.mlp_out = linear("mlp.c_fc", "ln_2"), linear("mlp.c_proj")
        matrices = [network.exit_weight(number) for number in range(1, network.num_exits + 1)]
        norms = [head.norm for head in network.exits]
        if all(matrix is matrices[0] for matrix in matrices):
            self.vocabulary = shared_vocabulary(matrices[0], norms)
        else:
            self.vocabulary = folded(matrices, [matrices[0].new_zeros(())] * len(matrices), norms)
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
        if any(type(head) not in (TiedHead, UntiedHead) or head.branch is not None for head in network.exits):
            return "a head other than 'tied' and 'untied', or a branch"
        dtypes = {
            parameter.dtype for part in (decoder.language_model, network.exits) for parameter in part.parameters()
        }
        if len(dtypes) > 1 or not dtypes <= set(DTYPES) or decoder.head_size > LARGEST_HEAD:
            return f"parameters of {', '.join(map(str, dtypes))}, heads of size {decoder.head_size}"
        parts = PARTS | CROSS_PARTS if sees_images else PARTS
        norms = [head.norm for head in network.exits]
        for block in decoder.blocks:
            for path, kind in parts.items():
                if type(block.get_submodule(path)) is not kind:
                    return f"a {path} that is not GPT-2's"
            if block.mlp.act.approximate != "tanh":
                return "an activation other than 'gelu_new'"
            norms += [block.get_submodule(path) for path, kind in parts.items() if kind is LayerNorm]
        if any(type(norm) is not LayerNorm or norm.weight is None or norm.bias is None for norm in norms):
            return "a normalisation that is not GPT-2's"
        if len({norm.eps for norm in norms}) > 1 or len({block.mlp.c_fc.nf for block in decoder.blocks}) > 1:
            return "blocks of different shapes"
        if any(type(one) is not Embedding for one in (transformer.wte, transformer.wpe)):
            return "embeddings that are not GPT-2's"
        return None


def folded(weights: list[Tensor], biases: list[Tensor], norms: list[Any]) -> Linear:
    """Matrices `(outputs, inputs)` and biases `(outputs,)` after a layer normalisation each."""
    scaled, moved = [], []
    for weight, bias, norm in zip(weights, biases, norms, strict=True):
        exact = weight.double()
        product = exact * norm.weight.double()
        scaled.append((product - product.mean(1, keepdim=True)).to(weight.dtype))
        moved.append((exact @ norm.bias.double() + bias.double()).float())
    return Linear(stacked(scaled), torch.stack(moved), True, norms[0].eps)


def stacked(weights: list[Tensor]) -> Tensor:
    """Matrices `(outputs, inputs)` as one tensor in which the outputs of one input are contiguous."""
    return torch.stack([weight.t() for weight in weights]).transpose(1, 2)


def shared_vocabulary(weight: Tensor, norms: list[Any]) -> Linear:
    """`weight` `(vocabulary, inputs)` after one layer normalisation per exit."""
    gain, shift = (torch.stack([getattr(norm, name) for norm in norms]).double() for name in ("weight", "bias"))
    boost = 2 ** gain.abs().amax(1).clamp_min(1e-30).log2().ceil()  # dividing by a power of 2 is exact
    gain = (gain / boost.unsqueeze(1)).to(weight.dtype)
    bias, slope = (rows.double() @ weight.double().t() for rows in (shift, gain))
    return Linear(weight.unsqueeze(0), bias.float(), True, norms[0].eps, gain, slope.float(), boost.float())
