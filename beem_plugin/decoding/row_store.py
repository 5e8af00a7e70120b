"""What captions under way have in memory that stays where it is, so that captured graphs find it again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.decoding import row_attention
from beem_plugin.decoding.row_norm import add_and_normalise, take_and_normalise


@dataclass
class Slots:
    """
    The words that a graph works on.

    # Parameters

    rows, positions : `Tensor`
        `(n,)` int64: the caption of each, and which word of it it is.
    places : `Tensor`
        `(n,)` int64: rows times the room of a row, plus positions.
    """

    rows: Tensor
    positions: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class RowStore:
    """
    Keys and values of words and images, the words' states, and the last words, of so many captions and one row more:
    the spare row, which slots of a graph are given that stand for nobody.

    # Parameters

    decoder : `Gpt2Decoder`
    capacity : `int`
        Captions, one an image.
    max_tokens : `int`
    patches : `int`
        Parts of an image.
    like : `Tensor`
        Of the precision and on the device of the states.
    """

    def __init__(self, decoder: Gpt2Decoder, capacity: int, max_tokens: int, patches: int, like: Tensor) -> None:
        self.decoder, self.capacity, self.max_tokens, self.patches = decoder, capacity, max_tokens, patches
        layers, heads, size = decoder.num_layers, decoder.num_heads, decoder.head_size
        words, parts = (capacity + 1, heads, max_tokens, size), (capacity + 1, heads, patches, size)
        # Of all blocks in one piece, for kernels that work on several blocks; and those of each.
        self.all_keys, self.all_values = (like.new_zeros(layers, *words) for _ in range(2))
        self.all_image_keys, self.all_image_values = (like.new_zeros(layers, *parts) for _ in range(2))
        self.keys, self.values = list(self.all_keys), list(self.all_values)
        self.image_keys, self.image_values = list(self.all_image_keys), list(self.all_image_values)
        self.hidden = like.new_zeros(capacity + 1, max_tokens, decoder.hidden_size)
        self.tokens = torch.zeros(capacity + 1, dtype=torch.int64, device=like.device)
        # Row, position and place of a word that stands for nobody.
        self.spare_word = np.array([[capacity], [0], [capacity * max_tokens]])
        self.use_kernels = self.kernels_serve(decoder, like)

    @staticmethod
    def kernels_serve(decoder: Gpt2Decoder, like: Tensor) -> bool:
        """Whether kernels can be used on states such as `like`."""
        return row_attention.serves(like.new_empty(0, decoder.head_size))

    @staticmethod
    def bytes_for(decoder: Gpt2Decoder, images: int, max_tokens: int, patches: int, like: Tensor) -> int:
        """What it takes, nearly."""
        return 2 * decoder.num_layers * images * (max_tokens + patches) * decoder.hidden_size * like.element_size()

    def fits(self, decoder: Gpt2Decoder, images: int, max_tokens: int, patches: int, like: Tensor) -> bool:
        """Whether so many captions can be decoded in it."""
        here = self.hidden
        return (
            decoder is self.decoder
            and images <= self.capacity
            and max_tokens == self.max_tokens
            and patches == self.patches
            and (like.dtype, like.device) == (here.dtype, here.device)
        )

    def write_skipped(self, layer: int, states: Tensor, slots: Slots) -> None:
        """Stores the keys and values that `states` `(n, hidden)` have in a block that they do not go through."""
        key, value = (one[:, :, 0].flatten(1) for one in self.decoder.keys_values(layer, states.unsqueeze(1)))
        keys, values = self.keys[layer - 1], self.values[layer - 1]
        row_attention.write(key, value, keys, values, slots.rows, slots.positions, self.use_kernels)

    def copy_from_below(self, layer: int, slots: Slots) -> None:
        """Gives block `layer` the keys and values that words have in the block before."""
        for buffers in (self.keys, self.values):
            below = buffers[layer - 2][slots.rows, :, slots.positions]
            buffers[layer - 1][slots.rows, :, slots.positions] = below

    def put_images(self, layer: int, images: Tensor | None, image_states: Tensor) -> None:
        """Stores what block `layer` attends to in `image_states` `(n, patches, hidden)` of the rows `images`."""
        new = self.decoder.cross_keys_values(layer, image_states)
        for buffer, part in zip((self.image_keys[layer - 1], self.image_values[layer - 1]), new, strict=True):
            if images is None:
                buffer[: len(part)] = part
            else:
                buffer.index_copy_(0, images, part)

    @property
    def flat_states(self) -> Tensor:
        """`(rows * words, hidden)`"""
        return self.hidden.view(-1, self.hidden.shape[2])

    def states(self, slots: Slots) -> Tensor:
        """`(n, hidden)`"""
        return self.flat_states.index_select(0, slots.places)

    def states_and_normed(self, slots: Slots, layer: int) -> tuple[Tensor, Tensor]:
        """`(n, hidden)` each: the states, and what the first normalisation of block `layer` says about them."""
        norm = self.decoder.blocks[layer - 1].ln_1
        return take_and_normalise(self.flat_states, slots.places, norm, self.use_kernels)

    def keep_states(self, states: Tensor, slots: Slots) -> None:
        """Stores `(n, hidden)`."""
        self.flat_states.index_copy_(0, slots.places, states)


class StoredWords:
    """
    How the words of some slots attend to what is stored; a `WordWork`.

    # Parameters

    store : `RowStore`
    slots : `Slots`
    keeps : `bool`, optional (default = `False`)
        Whether a block's output is stored.
    """

    def __init__(self, store: RowStore, slots: Slots, keeps: bool = False) -> None:
        self.store, self.slots, self.keeps = store, slots, keeps
        self.sees_images = store.patches > 0

    def attend(self, number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Stores the words' keys and values first."""
        store, slots, scale = self.store, self.slots, self.store.decoder.scale(number)
        keys, values = store.keys[number - 1], store.values[number - 1]
        row_attention.write(key, value, keys, values, slots.rows, slots.positions, store.use_kernels)
        return row_attention.attend(query, keys, values, slots.rows, slots.positions, scale, store.use_kernels)

    def attend_image(self, number: int, query: Tensor) -> Tensor:
        """To all parts of each word's image."""
        store, scale = self.store, self.store.decoder.scale(number)
        keys, values = store.image_keys[number - 1], store.image_values[number - 1]
        return row_attention.attend(query, keys, values, self.slots.rows, None, scale, store.use_kernels)

    def add_and_normalise(self, hidden: Tensor, update: Tensor, norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
        return add_and_normalise(hidden, update, norm, self.store.use_kernels)

    def finish(self, hidden: Tensor, update: Tensor, norm: torch.nn.LayerNorm | None) -> tuple[Tensor, Tensor | None]:
        """Stores the sum if it is to be."""
        store, slots = self.store, self.slots
        if norm is not None:
            kept = store.flat_states if self.keeps else None
            return add_and_normalise(hidden, update, norm, store.use_kernels, kept, slots.places)
        total = hidden + update
        if self.keeps:
            store.keep_states(total, slots)
        return total, None
