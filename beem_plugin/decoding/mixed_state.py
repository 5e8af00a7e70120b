"""What the device knows of captions whose words are at different depths, and all blocks' weights in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.activations import NewGELUActivation
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.pytorch_utils import Conv1D

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.decoding.row_norm import is_known
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.exits.vocabulary_heads import TiedHead


class MixedState:
    """
    Where each caption is, and what it says.

    # Parameters

    rows : `int`
        Captions.
    room : `int`
        Words of each.
    asked : `Tensor`
        `(blocks,)` int32: the number of the exit behind each block, 0 where nobody is asked.
    """

    def __init__(self, rows: int, room: int, asked: Tensor) -> None:
        self.rows, self.room, self.asked = rows, room, asked
        self.num_layers = len(asked)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=asked.device)

        # The block that each caption's word goes through next, from 0, or -1; and, last, how many launches there were.
        self.progress = whole(rows + 1)
        self.layers, self.launches = self.progress[:rows], self.progress[rows:]
        self.positions = whole(rows)
        self.filled = whole(rows, room)
        """The blocks in which a word has keys and values."""
        self.worked = whole(rows, room)
        self.listed = whole(self.num_layers + 1, rows * room)
        """By block, and last for the heads: rows times room plus position of words."""
        self.counts = whole(self.num_layers + 1, 2)
        """Of captions' present words in a block's list, and of all words there."""
        self.heads = whole(rows)
        """The exits at which the words of the last list are."""
        self.said, self.exits = whole(rows, room), whole(rows, room)
        self.log_probabilities = torch.zeros(rows, room, dtype=torch.float32, device=asked.device)

    def start(self, captions: int) -> None:
        """The first so many captions are at their beginning, the others are nobody's."""
        for tensor in (self.progress, self.positions, self.filled, self.exits):
            tensor.zero_()
        self.layers[captions:] = -1


class BlockWeights:
    """
    A decoder's weights of all blocks in one piece, which are copies, those that heads share, and room for what comes in
    between.

    # Parameters

    network : `CaptionNetwork`
        One that `serves` approves of.
    store : `RowStore`
    """

    def __init__(self, network: Any, store: RowStore) -> None:
        sees_images = store.patches > 0
        decoder: Gpt2Decoder = network.backbone.decoder
        blocks = list(decoder.blocks)

        def linear(*path: str, norm: str = "") -> Linear:
            found = [block.get_submodule(".".join(path)) for block in blocks]
            weight, bias = torch.stack([one.weight for one in found]), torch.stack([one.bias for one in found])
            return folded(weight, bias, [getattr(block, norm) for block in blocks]) if norm else Linear(weight, bias)

        self.words, self.words_out = linear("attn", "c_attn", norm="ln_1"), linear("attn", "c_proj")
        if sees_images:
            self.image = linear("crossattention", "q_attn", norm="ln_cross_attn")
            self.image_out = linear("crossattention", "c_proj")
        self.wide, self.narrow = linear("mlp", "c_fc", norm="ln_2"), linear("mlp", "c_proj")
        self.vocabulary = vocabulary_of(network.exit_weight(network.num_exits), [head.norm for head in network.exits])
        transformer = decoder.language_model.transformer
        self.word_embeddings, self.position_embeddings = transformer.wte.weight, transformer.wpe.weight
        self.scales = torch.tensor(
            [decoder.scale(number) for number in range(1, len(blocks) + 1)], device=self.words.weight.device
        )

        words, size = store.capacity * store.max_tokens, decoder.hidden_size
        self.query, self.attended = (store.hidden.new_zeros(words, size) for _ in range(2))
        self.inner = store.hidden.new_zeros(words, self.wide.bias.shape[1])
        self.logits = store.hidden.new_zeros(store.capacity, network.num_labels)

    @staticmethod
    def bytes_for(decoder: Gpt2Decoder, images: int, max_tokens: int) -> int:
        """What it takes, nearly."""
        parameters = [parameter for block in decoder.blocks for parameter in block.parameters()]
        numbers = sum(parameter.numel() for parameter in parameters) + images * max_tokens * 6 * decoder.hidden_size
        return (numbers + images * decoder.vocab_size) * parameters[0].element_size()

    @staticmethod
    def serves(network: Any, sees_images: bool) -> bool:
        """Whether the network consists of what the kernels compute, all in one precision."""
        decoder: Gpt2Decoder = network.backbone.decoder
        transformer = decoder.language_model.transformer
        norms = [head.norm for head in network.exits if type(head) is TiedHead]
        if len(norms) < len(network.exits):
            return False
        parameters = (*decoder.language_model.parameters(), *network.exits.parameters())
        if len({parameter.dtype for parameter in parameters}) > 1:
            return False
        linears: list[Any] = []
        for block in decoder.blocks:
            if type(block.attn) is not GPT2Attention or type(block.mlp) is not GPT2MLP:
                return False
            if type(block.mlp.act) is not NewGELUActivation:
                return False
            linears += [block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj]
            norms += [block.ln_1, block.ln_2]
            if sees_images:
                if type(block.crossattention) is not GPT2Attention:
                    return False
                linears += [block.crossattention.q_attn, block.crossattention.c_proj]
                norms.append(block.ln_cross_attn)
        if any(type(one) is not Conv1D for one in linears) or not all(map(is_known, norms)):
            return False
        if len({norm.eps for norm in norms}) > 1 or len({block.mlp.c_fc.nf for block in decoder.blocks}) > 1:
            return False
        return all(type(one) is torch.nn.Embedding for one in (transformer.wte, transformer.wpe))


@dataclass
class Linear:
    """
    A linear layer of every block, behind a normalisation where it is `normed`. The normalisation of `x` is
    `(x - mean) / spread`. Its gains are part of `weight`, and so is that the mean is subtracted: each column of
    `weight` sums up to 0. What comes out is `x @ weight / spread + bias`, so that a kernel can multiply while it still
    sums up for the spread. Heads share one matrix, of which neither can be part; there `(x * gain) @ weight - mean *
    slope` is divided by the spread and multiplied by `boost`, without which half precision might overflow.

    # Parameters

    weight : `Tensor`
        `(blocks, inputs, outputs)`; of heads, `(words, inputs)`.
    bias : `Tensor`
        `(blocks, outputs)`, of heads `(exits, words)`.
    normed : `bool`
    eps : `float`
        Added to the variance.
    gain, slope, boost : `Tensor`, optional
        Of heads: `(exits, inputs)`, and in float32 `(exits, words)` and `(exits,)`.
    """

    weight: Tensor
    bias: Tensor
    normed: bool = False
    eps: float = 0.0
    gain: Tensor | None = None
    slope: Tensor | None = None
    boost: Tensor | None = None


def folded(weight: Tensor, bias: Tensor, norms: list[Any]) -> Linear:
    """`weight` `(blocks, inputs, outputs)` and `bias` `(blocks, outputs)` behind normalisations."""
    gain = torch.stack([norm.weight for norm in norms]).double()
    shift = torch.stack([norm.bias for norm in norms]).double()
    scaled = gain.unsqueeze(2) * weight.double()
    moved = torch.einsum("bi,bio->bo", shift, weight.double()) + bias.double()
    return Linear((scaled - scaled.mean(1, keepdim=True)).to(weight.dtype), moved.float(), True, norms[0].eps)


def vocabulary_of(weight: Tensor, norms: list[Any]) -> Linear:
    """`weight` `(words, inputs)` behind one normalisation an exit."""
    gain = torch.stack([norm.weight for norm in norms]).double()
    shift = torch.stack([norm.bias for norm in norms]).double()
    whole = weight.double().t()
    boost = 2 ** gain.abs().amax(1).clamp_min(1e-30).log2().ceil()  # dividing by a power of 2 rounds nothing
    gain = (gain / boost.unsqueeze(1)).to(weight.dtype)
    slope = gain.double() @ whole
    return Linear(weight, (shift @ whole).float(), True, norms[0].eps, gain, slope.float(), boost.float())
