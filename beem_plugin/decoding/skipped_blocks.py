"""Keys and values of tokens in the blocks that they skipped."""

import numpy as np
import torch

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.common.registry import Registrable
from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.meter import CaptionMacs, block_macs, keys_values_macs


class SkippedBlocks(Registrable):
    """Computes keys and values of skipped blocks, in order, when a later token reaches such a block."""

    default_implementation = "propagate"

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, cache: DecoderCache) -> None:
        """
        # Parameters

        layer : `int`
            The block; the tokens have keys and values in all blocks before it.
        rows : `ndarray`
            `(r,)`
        positions : `ndarray`
            `(r, n)`; a row with fewer than n tokens names one several times.
        cache : `DecoderCache`
        """
        raise TypeError(f"{type(self).__name__} does not define fill")

    def count(self, missing: np.ndarray, decoder: Gpt2Decoder, patches: int, macs: CaptionMacs) -> None:
        """
        Adds the cost of `fill`.

        # Parameters

        missing : `ndarray`
            `(rows, tokens)` how many blocks of each earlier token are filled in.
        decoder : `Gpt2Decoder`
        patches : `int`
        macs : `CaptionMacs`
        """


@SkippedBlocks.register("propagate")
class Propagate(SkippedBlocks):
    """
    Projects the hidden state at a token's exit to keys and values of each skipped block, as if the blocks between were
    the identity (CALM, Schuster et al. 2022, section 3.3; its release takes the state of the
    first exit instead).

    Registered as a `SkippedBlocks` with name "propagate", which is the default.
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, cache: DecoderCache) -> None:
        index, where = cache.on_device(rows), cache.on_device(positions)
        states = cache.hidden[index.unsqueeze(1), where]  # (r, n, hidden)
        cache.write_many(layer, index, where, cache.decoder.keys_values(layer, states))

    def count(self, missing: np.ndarray, decoder: Gpt2Decoder, patches: int, macs: CaptionMacs) -> None:
        macs.skipped += float(missing.sum()) * keys_values_macs(decoder)


@SkippedBlocks.register("copy")
class Copy(SkippedBlocks):
    """
    Keys and values of the block where a token exited stand for those of the skipped ones (MuE, Tang et al. 2023).

    Registered as a `SkippedBlocks` with name "copy".
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, cache: DecoderCache) -> None:
        index, where = cache.on_device(rows), cache.on_device(positions)
        # The block below already has a copy, or it is the block where the token exited.
        for buffers in (cache.keys, cache.values):
            buffers[layer][index.unsqueeze(1), :, where] = buffers[layer - 1][index.unsqueeze(1), :, where]


@SkippedBlocks.register("recompute")
class Recompute(SkippedBlocks):
    """
    Computes the skipped block for all tokens that skipped it: later tokens attend to the same keys and values as at
    full depth (FREE, Bae et al. 2023). Tokens that were already decoded do not change.

    Registered as a `SkippedBlocks` with name "recompute".
    """

    def fill(self, layer: int, rows: np.ndarray, positions: np.ndarray, cache: DecoderCache) -> None:
        decoder = cache.decoder
        index, where = cache.on_device(rows), cache.on_device(positions)
        states = cache.hidden[index.unsqueeze(1), where]  # (r, n, hidden)
        query, key, value = decoder.project(layer, states)
        cache.write_many(layer, index, where, (key, value))
        length = int(positions.max()) + 1
        seen = torch.arange(length, device=where.device) <= where[:, None, :, None]  # (r, 1, n, length)
        cross, _ = cache.cross_keys_values(layer, rows, index)
        cache.hidden[index.unsqueeze(1), where] = decoder.block(
            layer, states, query, cache.read(layer, index, length), mask=seen, cross=cross
        )

    def count(self, missing: np.ndarray, decoder: Gpt2Decoder, patches: int, macs: CaptionMacs) -> None:
        for position, blocks in enumerate(missing.sum(0).tolist()):
            macs.blocks += blocks * block_macs(decoder, position + 1, patches)
