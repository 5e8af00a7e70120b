"""One word of every caption, each at its own depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.meter import block_macs
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.token_signals import TokenSignals


class CaptionNetwork(Protocol):
    """What decoding needs of a network: `models.MultiExitDecoder` is one."""

    exit_layers: list[int]
    backbone: Any
    shortlist: int | None
    remembers: bool

    @property
    def num_exits(self) -> int: ...

    @property
    def num_labels(self) -> int: ...

    @property
    def available_signals(self) -> set[str]: ...

    def image_states(self, batch: Any) -> Tensor | None: ...

    def exit_logits(self, exit_number: int, hidden: Tensor, memory: Any = None) -> Tensor: ...

    def remember(self, exit_number: int, hidden: Tensor, memory: dict[str, Tensor]) -> None: ...

    def head_macs(self, exit_number: int, words: int | None = None) -> int: ...

    def token_signals(
        self,
        exit_number: int,
        hidden: Tensor,
        previous: Tensor,
        position: Tensor,
        memory: dict[str, Tensor],
        count: Any = ...,
    ) -> TokenSignals: ...


@dataclass
class Words:
    """
    # Parameters

    log_probabilities : `Tensor`
        `(rows, words)` float32, said by the exit at which the row left.
    exits : `ndarray`
        `(rows,)` int64, 1-based.
    """

    log_probabilities: Tensor
    exits: np.ndarray


@dataclass
class _Running:
    """The rows that have not left: on the host, on the device (`None` for all), and what travels with them."""

    host: np.ndarray
    rows: Tensor | None
    hidden: Tensor  # (rows, 1, hidden)
    previous: Tensor
    state: ExitState
    memory: dict[str, Tensor]


class Stepper:
    """
    Runs one word of each row through the blocks; the policy says at each exit who leaves, and only the others go on.

    # Parameters

    network : `CaptionNetwork`
    policy : `ExitPolicy`
        Bound to the network and calibrated.
    cache : `DecoderCache`
    skipped_blocks : `SkippedBlocks`
    """

    def __init__(
        self, network: CaptionNetwork, policy: ExitPolicy, cache: DecoderCache, skipped_blocks: SkippedBlocks
    ) -> None:
        self.network = network
        self.policy = policy
        self.cache = cache
        self.skipped_blocks = skipped_blocks

    def step(self, tokens: Tensor, position: int) -> Words:
        """
        # Parameters

        tokens : `Tensor`
            `(rows,)` int64, the last word of each row.
        position : `int`
            Where it stands: 0 for the start.
        """
        rows, device = len(tokens), tokens.device
        hidden = self.network.backbone.decoder.embed(tokens.unsqueeze(1), position)
        running = _Running(
            np.arange(rows), None, hidden, hidden, self.policy.start(rows, self.network.num_exits, device), {}
        )
        said: Tensor | None = None
        exits = np.zeros(rows, dtype=np.int64)
        for exit_number in range(1, self.network.num_exits + 1):
            self._advance(exit_number, running, position)
            last = exit_number == self.network.num_exits
            # A shortlist is what the first exit says, whether or not anybody can leave there.
            makes_shortlist = exit_number == 1 and self.network.shortlist is not None and self.policy.leaves_early
            if not last and not self.policy.needs(exit_number) and not makes_shortlist:
                self._remember(exit_number, running)
                continue
            signals = self._signals(exit_number, running, position)
            # At the last exit everybody leaves; the policy is asked all the same if it has a say in the words.
            if not last or self.policy.needs_all_labels:
                leaves, running.state = self.policy.step(exit_number, signals, running.state)
            left = np.ones(len(running.host), dtype=bool) if last else leaves.cpu().numpy()
            if not left.any():
                self._remember(exit_number, running)
                continue
            exits[running.host[left]] = exit_number
            answers = self._answers(exit_number, signals, running, left)
            if said is None:
                said = answers if left.all() else answers.new_zeros(rows, answers.shape[1])
            if said is not answers:
                said[self.cache.on_device(running.host[left])] = answers
            if not last:
                self._leave(running, left, position)
            if left.all():
                break
            self._remember(exit_number, running)
        assert said is not None, "the last exit lets everybody leave"
        return Words(said, exits)

    def _signals(self, exit_number: int, running: _Running, position: int) -> TokenSignals:
        return self.network.token_signals(
            exit_number,
            running.hidden[:, 0],
            running.previous[:, 0],
            running.hidden.new_full((len(running.host),), position, dtype=torch.int64),
            running.memory,
            self.cache.macs.count_heads,
        )

    def _remember(self, exit_number: int, running: _Running) -> None:
        """What later exits look back at; at full depth none is asked that does."""
        if self.network.remembers and self.policy.leaves_early:
            self.network.remember(exit_number, running.hidden[:, 0], running.memory)

    def _advance(self, exit_number: int, running: _Running, position: int) -> None:
        """Through the blocks up to the exit's."""
        layers = self.network.exit_layers
        first = 1 if exit_number == 1 else layers[exit_number - 2] + 1
        for layer in range(first, layers[exit_number - 1] + 1):
            running.previous = running.hidden
            running.hidden = self._block(layer, running, position)

    def _block(self, layer: int, running: _Running, position: int) -> Tensor:
        cache, decoder = self.cache, self.network.backbone.decoder
        if self.policy.leaves_early and layer > self.network.exit_layers[0]:
            missing = cache.missing(layer, running.host, position)
            if missing is not None:
                self.skipped_blocks.fill(layer, *missing, cache)
        query, key, value = decoder.project(layer, running.hidden)
        cache.write(layer, running.rows, position, (key, value), running.host)
        cross, beams = cache.cross_keys_values(layer, running.host, running.rows)
        cache.macs.blocks += len(running.host) * block_macs(decoder, position + 1, cache.patches)
        return decoder.block(
            layer,
            running.hidden,
            query,
            cache.read(layer, running.rows, position + 1),
            cross=cross,
            beams=beams,
        )

    def _answers(self, exit_number: int, signals: TokenSignals, running: _Running, left: np.ndarray) -> Tensor:
        """`(leaving, words)` log-probabilities."""
        if self.policy.needs_all_labels:
            output = self.policy.output(exit_number, signals, running.state).float()
            return output if left.all() else output[self.cache.on_device(left.nonzero()[0])]
        computed = "logits" in vars(signals)
        if left.all() or computed:
            logits = signals.logits
            chosen = logits if left.all() else logits[self.cache.on_device(left.nonzero()[0])]
        else:
            gone = self.cache.on_device(left.nonzero()[0])
            hidden = running.hidden[gone, 0]
            memory = {name: value.index_select(0, gone) for name, value in running.memory.items()}
            self.cache.macs.count_heads(len(hidden) * self.network.head_macs(exit_number))
            chosen = self.network.exit_logits(exit_number, hidden, memory)
        return chosen.float().log_softmax(-1)

    def _leave(self, running: _Running, left: np.ndarray, position: int) -> None:
        """Keeps the states of those that leave for the blocks that they skip, and goes on with the others."""
        gone = self.cache.on_device(left.nonzero()[0])
        self.cache.hidden[self.cache.on_device(running.host[left]), position] = running.hidden[gone, 0]
        kept = self.cache.on_device((~left).nonzero()[0])
        running.host = running.host[~left]
        running.rows = self.cache.on_device(running.host)
        running.hidden = running.hidden.index_select(0, kept)
        running.previous = running.previous.index_select(0, kept)
        running.state = running.state.index_select(kept)
        running.memory = {name: value.index_select(0, kept) for name, value in running.memory.items()}
