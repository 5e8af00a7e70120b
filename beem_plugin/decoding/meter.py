"""Multiply-accumulates of decoding, counted from shapes as the work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder


@dataclass
class CaptionMacs:
    """
    Multiply-accumulates by what they went into. Attention counts as two matrix products, element-wise work not at all,
    as everywhere in this package; padding that only a batch needs does not count.

    # Parameters

    images : `float`
        The image encoder.
    cross : `float`
        Keys and values of the images, a block's once a word first reaches it.
    blocks : `float`
        Blocks run for words, those that `recompute` completes later included.
    skipped : `float`
        Keys and values that `propagate` projects for blocks that words skipped.
    heads : `float`
        Vocabulary heads, whole or over a shortlist.
    """

    images: float = 0.0
    cross: float = 0.0
    blocks: float = 0.0
    skipped: float = 0.0
    heads: float = 0.0

    @property
    def decoder(self) -> float:
        """All but the image encoder."""
        return self.cross + self.blocks + self.skipped + self.heads

    @property
    def total(self) -> float:
        return self.images + self.decoder

    def __add__(self, other: CaptionMacs) -> CaptionMacs:
        return CaptionMacs(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))

    def add(self, other: CaptionMacs) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def count_heads(self, macs: int) -> None:
        self.heads += macs


def block_macs(decoder: Gpt2Decoder, keys: int, patches: int) -> int:
    """A block for one token that attends to `keys` tokens and `patches` parts of an image (0: text alone)."""
    size = decoder.hidden_size
    inner = decoder.config.n_inner or 4 * size
    own = 4 * size * size + 2 * keys * size + 2 * size * inner
    return own + (2 * size * size + 2 * patches * size if patches else 0)


def keys_values_macs(decoder: Gpt2Decoder) -> int:
    """Key and value of one token, or of one part of an image, in one block."""
    return 2 * decoder.hidden_size * decoder.hidden_size


def full_depth(network: Any, captions: list[int], patches: int) -> CaptionMacs:
    """
    Decoding at full depth with the last head alone, as a network without exits.

    # Parameters

    network : `MultiExitDecoder`
    captions : `list[int]`
        How many words each caption has, its end included.
    patches : `int`
    """
    decoder: Gpt2Decoder = network.backbone.decoder
    macs = CaptionMacs()
    for words in captions:
        macs.blocks += decoder.num_layers * sum(block_macs(decoder, keys, patches) for keys in range(1, words + 1))
        macs.cross += decoder.num_layers * patches * keys_values_macs(decoder)
        macs.heads += words * network.head_macs(network.num_exits)
    return macs


def image_macs(network: Any, shape: tuple[int, ...]) -> float:
    """The image encoder on one image of `shape` `(channels, height, width)`; run once for each shape."""
    known = _KNOWN.setdefault(network.backbone, {})
    if shape not in known:
        parameter = next(network.backbone.parameters())
        image = torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            network.backbone.encode_images(image)
        known[shape] = counter.get_total_flops() / 2
    return known[shape]


_KNOWN: WeakKeyDictionary[Any, dict[tuple[int, ...], float]] = WeakKeyDictionary()
