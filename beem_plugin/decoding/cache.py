"""Keys and values of captions whose tokens have different exits."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder, KeysValues
from beem_plugin.exits.branches import TransformerBranch


class DecoderCache:
    """
    For each block the keys and values of all tokens so far, one row a caption (or beam), and those of the images. The
    host tracks in how many blocks a token has keys and values, so that finding missing ones needs no transfer.

    `image_states` are `(images, patches, hidden)`, with 0 patches for text alone; each image has `beams` rows of at
    most `max_tokens` tokens, BOS included. The keys and values of the exits' `branches` are stored, too, as those of
    "layer" minus the exit's number.
    """

    def __init__(
        self,
        decoder: Gpt2Decoder,
        image_states: Tensor,
        beams: int,
        max_tokens: int,
        branches: Mapping[int, TransformerBranch] | None = None,
    ) -> None:
        self.decoder = decoder
        self.image_states = image_states
        self.beams = beams
        rows = len(image_states) * beams
        shapes = dict.fromkeys(range(1, decoder.num_layers + 1), (decoder.num_heads, decoder.head_size))
        for number, branch in (branches or {}).items():
            shapes[-number] = (branch.num_heads, branch.width // branch.num_heads)
        self.keys, self.values = (
            {layer: image_states.new_zeros(rows, heads, max_tokens, size) for layer, (heads, size) in shapes.items()}
            for _ in range(2)
        )
        # The hidden state of a token at its exit, or after the last block that was recomputed for it.
        self.hidden = image_states.new_zeros(rows, max_tokens, decoder.hidden_size)
        # The number of blocks in which each token, and each image, has keys and values.
        self.filled = np.zeros((rows, max_tokens), dtype=np.int64)
        self.cross: list[KeysValues | None] = [None] * decoder.num_layers
        self.image_depths = np.zeros(len(image_states), dtype=np.int64)

    @property
    def num_rows(self) -> int:
        return len(self.filled)

    @property
    def patches(self) -> int:
        return self.image_states.shape[1]

    def on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.hidden.device, non_blocking=True)

    def append(self, layer: int, rows: Tensor | None, position: int, key: Tensor, value: Tensor) -> KeysValues:
        """Stores `(rows, heads, 1, size)` at `position`; returns all up to it. `rows` is `None` for all."""
        for buffer, new in ((self.keys[layer], key), (self.values[layer], value)):
            buffer[slice(None) if rows is None else rows, :, position] = new[:, :, 0]
        return self.read(layer, rows, position + 1)

    def write_many(self, layer: int, rows: Tensor, positions: Tensor, keys_values: Sequence[Tensor]) -> None:
        """Stores `(rows, heads, n, size)` at `positions` `(rows, n)`."""
        rows = rows.unsqueeze(1)
        self.keys[layer][rows, :, positions] = keys_values[0].transpose(1, 2)
        self.values[layer][rows, :, positions] = keys_values[1].transpose(1, 2)

    def read(self, layer: int, rows: Tensor | None, length: int) -> KeysValues:
        """Keys and values of the first `length` tokens."""
        keys, values = self.keys[layer][:, :, :length], self.values[layer][:, :, :length]
        return (keys, values) if rows is None else (keys.index_select(0, rows), values.index_select(0, rows))

    def missing(self, layer: int, host: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray] | None:
        """
        Which tokens before `position` in the rows `host` have no keys and values in block `layer`: rows `(r,)`, and
        positions `(r, n)`, of which a row's first is repeated where it has fewer than others. `None` if nothing is
        missing.
        """
        absent = self.filled[host, :position] < layer
        count = absent.sum(1)
        if not count.any():
            return None
        rows, absent, count = host[count > 0], absent[count > 0], count[count > 0]
        order = np.argsort(~absent, axis=1, kind="stable")[:, : count.max()]
        positions = np.where(np.arange(order.shape[1]) < count[:, None], order, order[:, :1])
        return rows, positions

    def cross_keys_values(self, layer: int, host: np.ndarray, rows: Tensor | None) -> tuple[KeysValues | None, int]:
        """Keys and values of the images for these rows, and the number of rows per image in them."""
        if self.patches == 0:
            return None, 1
        images = np.unique(host // self.beams)
        needed = images[self.image_depths[images] < layer]
        if len(needed):
            self._project_images(layer, needed)
        keys_values = self.cross[layer - 1]
        assert keys_values is not None, "projected above"
        if rows is None:
            return keys_values, self.beams
        of_rows = self.on_device(host // self.beams)
        return (keys_values[0].index_select(0, of_rows), keys_values[1].index_select(0, of_rows)), 1

    def _project_images(self, layer: int, images: np.ndarray) -> None:
        self.image_depths[images] = layer
        if len(images) == len(self.image_states):
            self.cross[layer - 1] = self.decoder.cross_keys_values(layer, self.image_states)
            return
        index = self.on_device(images)
        new = self.decoder.cross_keys_values(layer, self.image_states.index_select(0, index))
        stored = self.cross[layer - 1]
        if stored is None:
            stored = (
                new[0].new_zeros(len(self.image_states), *new[0].shape[1:]),
                new[1].new_zeros(len(self.image_states), *new[1].shape[1:]),
            )
        self.cross[layer - 1] = (stored[0].index_copy(0, index, new[0]), stored[1].index_copy(0, index, new[1]))

    def keep_images(self, kept: np.ndarray) -> None:
        """Drops all images but those at `kept`, with their rows."""
        rows = (kept[:, None] * self.beams + np.arange(self.beams)).reshape(-1)
        index, images = self.on_device(rows), self.on_device(kept)
        self.keys = {layer: buffer.index_select(0, index) for layer, buffer in self.keys.items()}
        self.values = {layer: buffer.index_select(0, index) for layer, buffer in self.values.items()}
        self.hidden = self.hidden.index_select(0, index)
        self.filled = self.filled[rows]
        self.image_states = self.image_states.index_select(0, images)
        self.cross = [
            None if pair is None else (pair[0].index_select(0, images), pair[1].index_select(0, images))
            for pair in self.cross
        ]
        self.image_depths = self.image_depths[kept]

    def reorder(self, rows: np.ndarray, length: int) -> None:
        """Row r continues the first `length` tokens of row `rows[r]`, a beam of the same image."""
        if (rows == np.arange(len(rows))).all():
            return
        index = self.on_device(rows)
        for buffer in (*self.keys.values(), *self.values.values()):
            buffer[:, :, :length] = buffer[:, :, :length].index_select(0, index)
        self.hidden[:, :length] = self.hidden[:, :length].index_select(0, index)
        self.filled = self.filled[rows]
