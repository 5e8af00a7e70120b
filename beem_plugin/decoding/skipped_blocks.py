"""What later words attend to in the blocks that a word has skipped."""

from __future__ import annotations

import numpy as np
import torch

from beem_plugin.common.registry import Registrable
from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.meter import CaptionMacs, block_macs, keys_values_macs
from beem_plugin.decoding.row_store import RowStore, Slots, StoredWords


class SkippedBlocks(Registrable):
    """
    Fills in keys and values of skipped blocks. It is asked when a later word reaches such a block, not before: what no
    word asks for is never computed. Blocks are asked for in order, so that everything below is there.
    """

    default_implementation = "propagate"

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, count: int, cache: DecoderCache) -> None:
        """
        # Parameters

        layer : `int`
            The block; the words' keys and values are there up to the one before.
        rows : `ndarray`
            `(r,)`
        positions : `ndarray`
            `(r, n)`; a row with fewer than n names one several times.
        count : `int`
            How many words there are without the repetitions.
        cache : `DecoderCache`
        """
        raise TypeError(f"{type(self).__name__} does not define fill")

    def fill_words(self, layer: int, slots: Slots, store: RowStore) -> None:
        """
        The same for a captured graph, which asks nothing of the host. Several words may be of one row, and some the
        spare row's. Where it is not defined, no graphs are used.
        """
        raise TypeError(f"{type(self).__name__} does not define fill_words")

    def count(self, layer: int, rows: np.ndarray, positions: np.ndarray, store: RowStore, macs: CaptionMacs) -> None:
        """Notes in `macs` what `fill_words` computes of the words at `positions` of `rows`, `(n,)` each."""

    @property
    def serves_graphs(self) -> bool:
        """Whether `fill_words` belongs to this very rule."""
        owner = next(cls for cls in type(self).__mro__ if "fill" in vars(cls))
        return "fill_words" in vars(owner)


@SkippedBlocks.register("propagate")
class Propagate(SkippedBlocks):
    """
    The state with which a word left goes through the key and value projections of each skipped block, as if the blocks
    between had changed nothing (CALM, Schuster et al. 2022, section 3.3; its release takes the state of the first exit
    instead).

    Registered as a `SkippedBlocks` with name "propagate", which is the default.
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, count: int, cache: DecoderCache) -> None:
        index, where = cache.on_device(rows), cache.on_device(positions)
        states = cache.hidden[index.unsqueeze(1), where]  # (r, n, hidden)
        cache.write_many(layer, index, where, cache.decoder.keys_values(layer, states))
        cache.filled[rows[:, None], positions] = layer
        cache.macs.skipped += count * keys_values_macs(cache.decoder)

    def fill_words(self, layer: int, slots: Slots, store: RowStore) -> None:
        store.write_skipped(layer, store.states(slots), slots)

    def count(self, layer: int, rows: np.ndarray, positions: np.ndarray, store: RowStore, macs: CaptionMacs) -> None:
        macs.skipped += len(rows) * keys_values_macs(store.decoder)


@SkippedBlocks.register("copy")
class Copy(SkippedBlocks):
    """
    Keys and values of the block where a word left stand for those of the skipped ones (MuE, Tang et al. 2023).

    Registered as a `SkippedBlocks` with name "copy".
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, count: int, cache: DecoderCache) -> None:
        index, where = cache.on_device(rows), cache.on_device(positions)
        # The block below holds a copy already, or it is the one where the word left.
        for buffers in (cache.keys, cache.values):
            buffers[layer - 1][index.unsqueeze(1), :, where] = buffers[layer - 2][index.unsqueeze(1), :, where]
        cache.filled[rows[:, None], positions] = layer

    def fill_words(self, layer: int, slots: Slots, store: RowStore) -> None:
        store.copy_from_below(layer, slots)


@SkippedBlocks.register("recompute")
class Recompute(SkippedBlocks):
    """
    The words that skipped a block are run through it now, together: what a word attends to is exactly what it would be
    had no word ever left (FREE, Bae et al. 2023). The words that were said stay as they are.

    Registered as a `SkippedBlocks` with name "recompute".
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, count: int, cache: DecoderCache) -> None:
        decoder = cache.decoder
        index, where = cache.on_device(rows), cache.on_device(positions)
        states = cache.hidden[index.unsqueeze(1), where]  # (r, n, hidden)
        query, key, value = decoder.project(layer, states)
        cache.write_many(layer, index, where, (key, value))
        cache.filled[rows[:, None], positions] = layer
        length = int(positions.max()) + 1
        seen = torch.arange(length, device=where.device) <= where[:, None, :, None]  # (r, 1, n, length)
        cross, _ = cache.cross_keys_values(layer, rows, index)
        cache.hidden[index.unsqueeze(1), where] = decoder.block(
            layer, states, query, cache.read(layer, index, length), mask=seen, cross=cross
        )
        different = sum(np.unique(row).sum() + len(np.unique(row)) for row in positions)  # keys that they attend to
        cache.macs.blocks += count * block_macs(decoder, 0, cache.patches) + 2 * int(different) * decoder.hidden_size

    def fill_words(self, layer: int, slots: Slots, store: RowStore) -> None:
        states, normed = store.states_and_normed(slots, layer)
        store.decoder.block_of_words(layer, states, normed, StoredWords(store, slots, keeps=True))

    def count(self, layer: int, rows: np.ndarray, positions: np.ndarray, store: RowStore, macs: CaptionMacs) -> None:
        macs.blocks += sum(block_macs(store.decoder, position + 1, store.patches) for position in positions.tolist())
