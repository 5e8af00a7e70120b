"""The captions of a batch of images, word by word, told to captured graphs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.graph_launch import Launch
from beem_plugin.decoding.meter import CaptionMacs, block_macs, keys_values_macs
from beem_plugin.decoding.word_graphs import WordGraphs

FEWEST_FILLED = 8


class RowDecoding:
    """
    The captions of one batch of images.

    # Parameters

    graphs : `WordGraphs`
    image_states, macs, bos, eos, max_length
        As in `CapturedGreedy.run`.
    """

    def __init__(
        self, graphs: WordGraphs, image_states: Tensor, macs: CaptionMacs, bos: int, eos: int, max_length: int
    ) -> None:
        self.graphs, self.image_states, self.macs = graphs, image_states, macs
        self.eos, self.max_length = eos, max_length
        self.store = graphs.store
        images, layers = len(image_states), self.store.decoder.num_layers
        self.captions = [GeneratedCaption() for _ in range(images)]
        # Up to which block the keys and values of a word are there, and whether those of an image are.
        self.filled = np.zeros((images, max_length), dtype=np.int64)
        self.has_image = np.zeros((layers, images), dtype=bool)
        self.store.tokens.fill_(bos)

    def run(self) -> list[GeneratedCaption]:
        """All captions."""
        live = np.arange(len(self.captions))
        for position in range(self.max_length):
            ended = self._word(live, position)
            live = np.setdiff1d(live, ended, assume_unique=True)
            if not len(live):
                break
        for caption in self.captions:
            caption.score = sum(caption.log_probabilities)
        return self.captions

    def _word(self, alive: np.ndarray, position: int) -> list[int]:
        """One word of each of these rows; which of them have ended by it."""
        graphs, store, macs = self.graphs, self.store, self.macs
        asked: list[tuple[np.ndarray, int, Launch]] = []
        ended: list[int] = []
        for number, exits in enumerate(graphs.segments):
            layers, count = graphs.layers(number), len(alive)
            launch = graphs.segment(number, slots_for(count))
            self._complete(alive, position, layers)
            launch.run(alive, position, store)
            self.filled[alive, position] = layers[-1]
            macs.blocks += len(layers) * count * block_macs(store.decoder, position + 1, store.patches)
            macs.heads += count * launch.head_macs
            answers = launch.answers(count)
            left = answers[:, 0] != 0
            if not left.any():
                continue
            leaving = alive[left]
            if launch.says:
                ended += self._note(leaving, exits[-1], answers[left])
            else:
                asked.append((leaving, exits[-1], self._ask_words(exits[-1], leaving, position)))
            alive = alive[~left]
            if not len(alive):
                break
        # Nobody waits for these words before all rows have left.
        for leaving, exit_number, launch in asked:
            ended += self._note(leaving, exit_number, launch.answers(len(leaving)))
        return ended

    def _note(self, rows: np.ndarray, exit_number: int, answers: np.ndarray) -> list[int]:
        """Adds a word to each of the captions; those that end by it."""
        ended = []
        for row, (_, word, log_probability) in zip(rows.tolist(), answers.tolist(), strict=True):
            caption = self.captions[row]
            caption.tokens.append(int(word))
            caption.exits.append(exit_number)
            caption.log_probabilities.append(log_probability)
            if int(word) == self.eos:
                ended.append(row)
        return ended

    def _ask_words(self, exit_number: int, rows: np.ndarray, position: int) -> Launch:
        launch = self.graphs.answer(exit_number, slots_for(len(rows)))
        launch.run(rows, position, self.store)
        self.macs.heads += len(rows) * launch.head_macs
        return launch

    def _complete(self, alive: np.ndarray, position: int, layers: range) -> None:
        """What these blocks attend to: keys and values of the images, and of earlier words that have skipped them."""
        store, graphs = self.store, self.graphs
        if store.patches:
            for layer in layers:
                needed = alive[~self.has_image[layer - 1, alive]]
                if len(needed):
                    self._put_images(layer, needed)
        if not graphs.policy.leaves_early or not position or self.filled[alive, :position].min() >= layers[-1]:
            return
        for layer in layers:
            places, positions = (self.filled[alive, :position] < layer).nonzero()
            if not len(places):
                continue
            rows = alive[places]
            launch = graphs.fill(layer, slots_for(len(rows), FEWEST_FILLED, 4))
            launch.run(rows, positions, store)
            self.filled[rows, positions] = layer
            graphs.skipped_blocks.count(layer, rows, positions, store, self.macs)

    def _put_images(self, layer: int, images: np.ndarray) -> None:
        store = self.store
        self.has_image[layer - 1, images] = True
        self.macs.cross += len(images) * store.patches * keys_values_macs(store.decoder)
        if len(images) == len(self.image_states):
            store.put_images(layer, None, self.image_states)
            return
        index = torch.from_numpy(images).to(self.image_states.device)
        store.put_images(layer, index, self.image_states.index_select(0, index))


def slots_for(count: int, fewest: int = 1, factor: int = 2) -> int:
    """The smallest of `fewest`, `fewest * factor`, ... that holds `count`."""
    slots = fewest
    while slots < count:
        slots *= factor
    return slots
