"""
Greedy decoding on a GPU where every launch takes each caption one block further, whatever block its word is in.

Where all captions go through a block together, those whose word has left wait until the deepest has: a batch is as
slow as full depth, exits or not. Here a caption whose word has left begins its next word while others go deeper; a
kernel multiplies each word by the weights of its own block. Which words are where, what the rule says and what comes
next is decided on the device: the host starts a graph of some launches again and again until all captions have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding import mixed_linear as linears
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.graph_launch import look_until
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.mixed_attention import copy_skipped, mixed_attend
from beem_plugin.decoding.mixed_counts import count_words
from beem_plugin.decoding.mixed_decision import advance
from beem_plugin.decoding.mixed_linear import mixed_linear
from beem_plugin.decoding.mixed_lists import list_words
from beem_plugin.decoding.mixed_state import BlockWeights, MixedState
from beem_plugin.decoding.row_decoding import slots_for
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.decoding.skipped_blocks import Copy, Propagate, Recompute, SkippedBlocks
from beem_plugin.decoding.word_decision import RuleMemory
from beem_plugin.decoding.word_graphs import asked_exits, rule_of_kernels
from beem_plugin.execution.recorder import Recorder
from beem_plugin.exits.policy import ExitPolicy

LAUNCHES = 4
"""Of a graph: so many blocks between two looks at who has ended."""
MOST_ROWS = 512
FEW_ROWS = 4
"""So many captions at full depth are decoded sooner by launches of one block each, whose products are the vendor's."""


class MixedDepths:
    """
    The graphs of a network and a policy over a store, by number of captions, captured when they are first needed.

    # Parameters

    network : `CaptionNetwork`
        One that `serves` approves of.
    policy : `ExitPolicy`
        Bound and calibrated; its numbers become part of the graphs.
    store : `RowStore`
    skipped_blocks : `SkippedBlocks`
    recorder : `Recorder`
    weights : `BlockWeights`
    end : `int`
        The word that ends a caption.
    """

    def __init__(
        self,
        network: Any,
        policy: ExitPolicy,
        store: RowStore,
        skipped_blocks: SkippedBlocks,
        recorder: Recorder,
        weights: BlockWeights,
        end: int,
    ) -> None:
        self.policy, self.store, self.skipped_blocks, self.recorder = policy, store, skipped_blocks, recorder
        self.weights, self.end = weights, end
        self.exit_layers: list[int] = list(network.exit_layers)
        known = rule_of_kernels(network, policy, store.use_kernels)
        assert known is not None
        self.memory = RuleMemory(known, store.capacity + 1, store.max_tokens, store.hidden.device)
        needed = asked_exits(network, policy)
        self.head_macs = [network.head_macs(number) if asks else 0 for number, asks in enumerate(needed, start=1)]
        self.asked = [number for number, asks in enumerate(needed, start=1) if asks]
        # The exit at which everybody leaves.
        self.last_exit = next(
            number for number in self.asked if known.rule.numbers[number - 1][2] or number == len(needed)
        )
        asked = [0] * store.decoder.num_layers
        for number in self.asked:
            asked[self.exit_layers[number - 1] - 1] = number
        device = store.hidden.device
        self.state = MixedState(store.capacity, store.max_tokens, torch.tensor(asked, dtype=torch.int32, device=device))
        self.seen = recorder.pinned(store.capacity + 1, dtype=torch.int32)
        self.starts: dict[int, Callable[[], None]] = {}

    @staticmethod
    def pays(policy: ExitPolicy, captions: int) -> bool:
        """Whether so many captions are decoded sooner this way."""
        return captions <= MOST_ROWS and (policy.leaves_early or captions > FEW_ROWS)

    @staticmethod
    def serves(network: Any, policy: ExitPolicy, image_states: Tensor, skipped_blocks: SkippedBlocks) -> bool:
        """Whether the kernels compute what this network, rule and way to fill in skipped blocks say."""
        return (
            type(skipped_blocks) in (Propagate, Recompute, Copy)
            and rule_of_kernels(network, policy, RowStore.kernels_serve(network.backbone.decoder, image_states))
            is not None
            and network.exit_weight(network.num_exits).dtype == image_states.dtype
            and BlockWeights.serves(network, image_states.shape[1] > 0)
        )

    def decode(self, image_states: Tensor, macs: CaptionMacs, bos: int) -> list[GeneratedCaption]:
        """
        One caption for each image.

        # Parameters

        image_states, macs, bos
            As in `CapturedGreedy.run`.
        """
        captions, store, state = len(image_states), self.store, self.state
        for layer in range(1, self.exit_layers[self.last_exit - 1] + 1):
            if store.patches:
                store.put_images(layer, None, image_states)
        slots = min(slots_for(captions), store.capacity)
        if slots not in self.starts:
            state.start(0)
            self.starts[slots] = self.recorder.capture(lambda: self._launches(slots))
        state.start(captions)
        first = functional.embedding(torch.full((1,), bos, device=store.hidden.device), self.weights.word_embeddings)
        store.hidden[:captions, 0] = first + self.weights.position_embeddings[:1]
        self._until_ended(self.starts[slots])
        packed = torch.stack([state.said, state.exits, state.log_probabilities.view(torch.int32)])
        said, exits, log_probabilities = packed[:, :captions].cpu().numpy()
        found = []
        for row in range(captions):
            count = int(np.count_nonzero(exits[row]))
            logs = log_probabilities[row, :count].view(np.float32).tolist()
            tokens, depths = said[row, :count].tolist(), exits[row, :count].tolist()
            found.append(GeneratedCaption(tokens, depths, logs, sum(logs)))
        macs.add(count_words(exits, self.exit_layers, self.head_macs, self.skipped_blocks, store))
        return found

    def _until_ended(self, start: Callable[[], None]) -> None:
        """Starts the graph again and again. One is queued while the host looks at what the one before has left."""
        seen = self.seen.numpy()
        seen[:] = 0
        most = self.store.max_tokens * self.store.decoder.num_layers + 2 * LAUNCHES
        for started in range(0, most, LAUNCHES):
            start()
            self._wait_for(seen, started)
            if started and (seen[:-1] < 0).all():
                return
        self.recorder.wait()
        if not (seen[:-1] < 0).all():
            raise RuntimeError(f"captions have not ended after {most} launches")

    def _wait_for(self, seen: np.ndarray, launches: int) -> None:
        look_until(lambda: bool(seen[-1] >= launches), self.recorder.wait)
        if seen[-1] < launches:
            raise RuntimeError(f"{seen[-1]} of {launches} launches have been noted, and none is left")

    def _launches(self, rows: int) -> None:
        for _ in range(LAUNCHES):
            self._launch(rows)
        self.seen.copy_(self.state.progress, non_blocking=True)

    def _launch(self, rows: int) -> None:
        """One block for each of so many captions, and what is said behind it."""
        store, state, weights = self.store, self.state, self.weights
        leaves, copies = self.policy.leaves_early, isinstance(self.skipped_blocks, Copy)
        recomputes = leaves and isinstance(self.skipped_blocks, Recompute)
        hidden, query, attended = store.flat_states, weights.query, weights.attended
        stored, of_images = (store.all_keys, store.all_values), (store.all_image_keys, store.all_image_values)
        list_words(state, rows, leaves, recomputes)
        fills = leaves and not copies
        mixed_linear(state, rows, linears.KEYS_VALUES, hidden, weights.words, query, fills, stored)
        if leaves and copies:
            copy_skipped(state, rows, stored)
        mixed_attend(state, rows, query, stored, weights.scales, attended, True, recomputes)
        mixed_linear(state, rows, linears.ADD, attended, weights.words_out, hidden, recomputes)
        if store.patches:
            mixed_linear(state, rows, linears.STORE, hidden, weights.image, query, recomputes)
            mixed_attend(state, rows, query, of_images, weights.scales, attended, False, recomputes)
            mixed_linear(state, rows, linears.ADD, attended, weights.image_out, hidden, recomputes)
        mixed_linear(state, rows, linears.GELU, hidden, weights.wide, weights.inner, recomputes)
        mixed_linear(state, rows, linears.ADD, weights.inner, weights.narrow, hidden, recomputes)
        mixed_linear(state, rows, linears.HEAD, hidden, weights.vocabulary, weights.logits)
        first = self.asked[0]
        advance(state, rows, self.memory, weights.logits, hidden, weights, self.end, first, self.last_exit)
