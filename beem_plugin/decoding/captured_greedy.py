"""
Greedy decoding on a GPU through captured graphs: the most probable word, again and again, each row at its own depth.

Launched one by one, the kernels of a block take the host several times as long as they take the device; so do those of
a head and a policy's step, so that early exits cost more than they save. Here each of them is part of a graph. Where
kernels serve that know the network and the rule, every launch takes each caption one block further (`mixed_depths`);
else all captions go through a block together, and a word costs the host one start an exit at which somebody may leave
(`row_decoding`). What is said is what `greedy` says.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones.untouched import Untouched
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.mixed_depths import MixedDepths
from beem_plugin.decoding.mixed_linear import rounds_float32
from beem_plugin.decoding.mixed_state import BlockWeights
from beem_plugin.decoding.row_decoding import RowDecoding
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.decoding.word_graphs import WordGraphs
from beem_plugin.execution.captured import fingerprint, numbers_of
from beem_plugin.execution.recorder import CudaRecorder, Recorder
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)

MAX_POLICIES = 32
"""Of whose graphs are kept; the one unused longest makes room."""
MOST_BYTES = 2**31
"""Of the buffers that stay with a network; batches that need more are decoded without graphs."""
KEPT_AS = "_captured_greedy"


class CapturedGreedy:
    """
    The graphs of a network, under all policies and ways to fill in skipped blocks that it was decoded with. They are
    made anew when weights are written to, unless through `.data`, of which torch keeps no count.

    # Parameters

    make_recorder : `Callable[[torch.device], Recorder]`, optional (default = CUDA graphs)
    """

    worth_capturing: ClassVar[int] = 2
    """As the how many-th batch of its policy one is captured: what comes once is sooner decoded without."""
    mixes_depths: ClassVar[bool] = True
    """Whether captions need not go through a block together, where kernels for that serve."""

    def __init__(self, make_recorder: Callable[[torch.device], Recorder] = CudaRecorder) -> None:
        self.make_recorder = make_recorder
        self.failed: set[Any] = set()
        """Policies, and the like, whose graphs could not be captured."""
        self.recorder: Recorder | None = None
        self.store: RowStore | None = None
        self.weights: BlockWeights | None = None
        self.graphs: OrderedDict[Any, WordGraphs | MixedDepths] = OrderedDict()
        self.seen: Counter[Any] = Counter()
        self.mixable: dict[Any, bool] = {}
        self.baked: Any = None
        self.untouched: list[Untouched] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return CapturedGreedy, (self.make_recorder,)  # a copy of a network has graphs of its own to capture

    @classmethod
    def of(cls, network: Any) -> CapturedGreedy:
        """The one that is kept with `network`, and ends with it, or when its training goes on."""
        found: CapturedGreedy = vars(network).setdefault(KEPT_AS, cls())
        return found

    def run(
        self,
        network: Any,
        policy: ExitPolicy,
        skipped_blocks: SkippedBlocks,
        image_states: Tensor,
        macs: CaptionMacs,
        bos: int,
        eos: int,
        max_length: int,
    ) -> list[GeneratedCaption] | None:
        """
        One caption for each image, or `None` for a batch that is to be decoded without graphs; nothing has been counted
        then.

        # Parameters

        network : `CaptionNetwork`
            In evaluation mode.
        policy : `ExitPolicy`
            Bound and calibrated.
        skipped_blocks : `SkippedBlocks`
        image_states : `Tensor`
            `(images, patches, hidden)`
        macs : `CaptionMacs`
            Told what is computed.
        bos, eos : `int`
        max_length : `int`
        """
        numbers = numbers_of(policy)
        if numbers is None or not skipped_blocks.serves_graphs or not self._may_skip_modules(network):
            return None
        asked = (type(skipped_blocks), str(vars(skipped_blocks)), numbers, eos)
        self._notice_changes(network, policy, image_states)
        self.seen[asked] += 1
        mixes = self._mixes(asked, network, policy, skipped_blocks, image_states)
        decoder, (images, patches) = network.backbone.decoder, image_states.shape[:2]
        needed = RowStore.bytes_for(decoder, images, max_length, patches, image_states)
        mixes = mixes and needed + BlockWeights.bytes_for(decoder, images, max_length) <= MOST_BYTES
        key = (*asked, mixes)
        if key in self.failed or self.seen[asked] < self.worth_capturing or needed > MOST_BYTES:
            return None
        try:
            with on_recorders_stream(self._recorder(image_states.device), image_states):
                if self.store is None or not self.store.fits(decoder, images, max_length, patches, image_states):
                    self._drop_graphs()  # their buffers are those of the store
                    self.store = RowStore(decoder, images, max_length, patches, image_states)
                graphs = self._graphs_for(key, network, policy, skipped_blocks)
                counted = CaptionMacs()
                if isinstance(graphs, MixedDepths):
                    captions = graphs.decode(image_states, counted, bos)
                else:
                    captions = RowDecoding(graphs, image_states, counted, bos, eos, max_length).run()
        except Exception as error:  # torch, Triton and its compiler fail in many ways
            self.failed.add(key)
            self._drop_graphs()
            self.recorder = None
            found = (str(error).strip().splitlines() or [type(error).__name__])[0]
            what = "CUDA graphs are not used, words are decoded without"
            if mixes:
                what = "CUDA graphs of mixed depths are not used, captions go through blocks together from now on"
            logger.warning("%s: %s: %s", type(policy).__name__, what, found)
            return None
        except BaseException:  # what was interrupted may still answer
            self._drop_graphs()
            raise
        macs.add(counted)
        return captions

    def _may_skip_modules(self, network: Any) -> bool:
        """Whether nobody listens to what graphs do not call, nor has put something else in its place."""
        if not all(self.untouched) or not self.untouched:
            parts = (network.backbone.decoder.language_model, network.exits, network.signal_modules)
            self._forget()
            self.untouched = [Untouched(part) for part in parts]
        return all(self.untouched)

    def _notice_changes(self, network: Any, policy: ExitPolicy, image_states: Tensor) -> None:
        """Graphs of other weights do not come back, and a recorder belongs to a device."""
        weights, _ = fingerprint(network, policy)
        layers, rounds = tuple(network.exit_layers), rounds_float32()
        baked = (weights, network.shortlist, layers, image_states.device, rounds)
        if baked != self.baked:
            self._forget()
            self.recorder = None
            self.baked = baked

    def _forget(self) -> None:
        """All that was captured, tried and counted."""
        self._drop_graphs()
        self.failed.clear()
        self.mixable.clear()
        self.seen.clear()

    def _drop_graphs(self) -> None:
        self.graphs.clear()
        self.store = self.weights = None

    def _recorder(self, device: torch.device) -> Recorder:
        if self.recorder is None:
            self.recorder = self.make_recorder(device)
        return self.recorder

    def _graphs_for(
        self, key: Any, network: Any, policy: ExitPolicy, skipped_blocks: SkippedBlocks
    ) -> WordGraphs | MixedDepths:
        *_, eos, mixes = key
        if key not in self.graphs:
            while len(self.graphs) >= MAX_POLICIES:
                self.graphs.popitem(last=False)
            store, recorder = self.store, self.recorder
            assert recorder is not None and store is not None
            if mixes:
                if self.weights is None:
                    self.weights = BlockWeights(network, store)
                self.graphs[key] = MixedDepths(network, policy, store, skipped_blocks, recorder, self.weights, eos)
            else:
                self.graphs[key] = WordGraphs(network, policy, store, skipped_blocks, recorder)
        self.graphs.move_to_end(key)
        self.graphs[key].policy = policy  # an equal one: the other may be changed before the next graph is captured
        return self.graphs[key]

    def _mixes(
        self, asked: Any, network: Any, policy: ExitPolicy, skipped_blocks: SkippedBlocks, image_states: Tensor
    ) -> bool:
        """Whether captions go through blocks of their own; where that has failed, they go together."""
        if not self.mixes_depths or not MixedDepths.pays(policy, len(image_states)) or (*asked, True) in self.failed:
            return False
        if asked not in self.mixable:
            self.mixable[asked] = MixedDepths.serves(network, policy, image_states, skipped_blocks)
        return self.mixable[asked]


@contextmanager
def on_recorders_stream(recorder: Recorder, images: Tensor) -> Iterator[None]:
    """What is queued inside comes after what made `images`; outside everything is as it was."""
    if not images.is_cuda:
        recorder.enter()
        yield
        return
    with torch.cuda.device(images.device):
        before = torch.cuda.current_stream()
        try:
            recorder.enter()
            torch.cuda.current_stream().wait_stream(before)
            yield
        finally:
            torch.cuda.set_stream(before)
