"""What a rule has computed, told from the depths at which words left."""

from __future__ import annotations

import numpy as np

from beem_plugin.decoding.meter import CaptionMacs, block_macs, keys_values_macs
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.decoding.skipped_blocks import SkippedBlocks


def count_words(
    exits: np.ndarray, exit_layers: list[int], head_macs: list[int], skipped: SkippedBlocks, store: RowStore
) -> CaptionMacs:
    """
    What captions cost one word after the other, each block's share done when a word first needs it. A device that does
    several words' work at once may do some of it sooner, or in vain.

    # Parameters

    exits : `ndarray`
        `(captions, words)` exit numbers, 0 after a caption's end.
    exit_layers : `list[int]`
    head_macs : `list[int]`
        Of each exit's head; 0 where the rule does not ask.
    skipped : `SkippedBlocks`
    store : `RowStore`
    """
    macs = CaptionMacs()
    decoder, patches = store.decoder, store.patches
    depths = np.array([0, *exit_layers])[exits]
    macs.heads = float(np.cumsum([0, *head_macs])[exits].sum())
    macs.cross = float(depths.max(axis=1).sum()) * patches * keys_values_macs(decoder)
    filled = np.zeros_like(depths)
    for position in range(depths.shape[1]):
        depth = depths[:, position]
        if not depth.any():
            break
        macs.blocks += float(depth.sum()) * block_macs(decoder, position + 1, patches)
        missing = np.maximum(depth[:, None] - filled[:, :position], 0)
        rows, positions = missing.nonzero()
        if len(rows):
            times = missing[rows, positions]
            skipped.count(0, rows.repeat(times), positions.repeat(times), store, macs)
        filled[:, : position + 1] = np.maximum(filled[:, : position + 1], depth[:, None])
    return macs
