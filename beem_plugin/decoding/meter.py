"""Multiply-accumulates of decoding, counted from the depths of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder


@dataclass
class CaptionMacs:
    """
    Multiply-accumulates by part of the network: the image encoder; `cross`, keys and values of the images, for the
    blocks that tokens have reached; blocks run for tokens, including those that `recompute` runs later; keys and values
    that `propagate` projects for skipped blocks; and vocabulary heads, over all tokens or over a shortlist. Attention
    counts as two matrix products; element-wise work and the padding of a batch are not counted.
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

    def add(self, other: CaptionMacs) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def count_heads(self, macs: int) -> None:
        self.heads += macs


def block_macs(decoder: Gpt2Decoder, keys: int, patches: int) -> int:
    """A block for one token that attends to `keys` tokens and `patches` patches of an image (0: text alone)."""
    size = decoder.hidden_size
    inner = decoder.config.n_inner or 4 * size
    own = 4 * size * size + 2 * keys * size + 2 * size * inner
    return own + (2 * size * size + 2 * patches * size if patches else 0)


def keys_values_macs(decoder: Gpt2Decoder) -> int:
    """Key and value of one token, or of one patch of an image, in one block."""
    return 2 * decoder.hidden_size * decoder.hidden_size


def count_tokens(
    macs: CaptionMacs,
    decoder: Gpt2Decoder,
    depths: np.ndarray,
    position: int,
    filled: np.ndarray,
    image_depths: np.ndarray,
    patches: int,
    skipped_blocks: Any,
) -> None:
    """
    Adds the cost of one token of each row, without heads: its blocks; the skipped blocks of earlier tokens that it
    fills in; and keys and values of images that are needed for the first time. `depths` `(rows,)` are the blocks that
    each row's token, at `position` from 0, goes through, 0 for a row without one; `filled` `(rows, tokens)` and
    `image_depths` `(images,)` the blocks in which tokens and images have keys and values before; `skipped_blocks` is
    `None` if no block is skipped.
    """
    macs.blocks += float(depths.sum()) * block_macs(decoder, position + 1, patches)
    if skipped_blocks is not None:
        skipped_blocks.count(np.maximum(depths[:, None] - filled[:, :position], 0), decoder, patches, macs)
    reached = depths.reshape(len(image_depths), -1).max(1) if len(depths) else depths
    macs.cross += float(np.maximum(reached - image_depths, 0).sum()) * patches * keys_values_macs(decoder)


def count_captions(
    macs: CaptionMacs, decoder: Gpt2Decoder, depths: np.ndarray, patches: int, skipped_blocks: Any
) -> None:
    """Adds the cost of greedy decoding, without heads; `depths` `(captions, tokens)`: blocks, 0 after the end."""
    filled, image_depths = np.zeros_like(depths), np.zeros(len(depths), dtype=depths.dtype)
    for position in range(depths.shape[1]):
        depth = depths[:, position]
        count_tokens(macs, decoder, depth, position, filled, image_depths, patches, skipped_blocks)
        filled[:, : position + 1] = np.maximum(filled[:, : position + 1], depth[:, None])
        image_depths = np.maximum(image_depths, depth)


def full_depth(network: Any, captions: list[int], patches: int) -> CaptionMacs:
    """Cost at full depth with the last head alone; `captions` are numbers of tokens, EOS included."""
    decoder: Gpt2Decoder = network.backbone.decoder
    lengths = np.array(captions, dtype=np.int64)
    inside = np.arange(max(captions, default=0)) < lengths[:, None]
    macs = CaptionMacs(heads=float(lengths.sum()) * network.head_macs(network.num_exits))
    count_captions(macs, decoder, inside * decoder.num_layers, patches, None)
    return macs
