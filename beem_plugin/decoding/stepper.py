"""Computes one token of every caption, each with its own exit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.meter import CaptionMacs, count_tokens
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.token_signals import TokenSignals


class CaptionNetwork(Protocol):
    """The network that decoding runs; `models.MultiExitDecoder` is one."""

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

    def head_macs(self, exit_number: int, num_tokens: int | None = None) -> int: ...

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
class TokenScores:
    """
    # Parameters

    log_probabilities : `Tensor`
        `(rows, vocabulary)` float32, of the exit at which the row's token exited.
    exits : `ndarray`
        `(rows,)` int64, 1-based.
    """

    log_probabilities: Tensor
    exits: np.ndarray


@dataclass
class _Active:
    """The rows whose token has not exited, on the host and on the device (`None` for all), and their tensors."""

    host: np.ndarray
    rows: Tensor | None
    hidden: Tensor  # (rows, 1, hidden)
    previous: Tensor
    state: ExitState
    memory: dict[str, Tensor]


class Stepper:
    """
    Runs one token of each row through the blocks. The policy decides at each exit which tokens exit.

    # Parameters

    network : `CaptionNetwork`
    policy : `ExitPolicy`
        Bound to the network and calibrated.
    cache : `DecoderCache`
    skipped_blocks : `SkippedBlocks`
    macs : `CaptionMacs`
        Multiply-accumulates are added to it.
    """

    def __init__(
        self,
        network: CaptionNetwork,
        policy: ExitPolicy,
        cache: DecoderCache,
        skipped_blocks: SkippedBlocks,
        macs: CaptionMacs,
    ) -> None:
        self.network = network
        self.policy = policy
        self.cache = cache
        self.skipped_blocks = skipped_blocks
        self.macs = macs

    def step(self, tokens: Tensor, position: int) -> TokenScores:
        """
        # Parameters

        tokens : `Tensor`
            `(rows,)` int64, the last token of each row.
        position : `int`
            Its position: 0 for BOS.
        """
        rows, device, cache = len(tokens), tokens.device, self.cache
        filled, image_depths = cache.filled[:, :position].copy(), cache.image_depths.copy()
        hidden = self.network.backbone.decoder.embed(tokens.unsqueeze(1), position)
        state = self.policy.start(rows, self.network.num_exits, device)
        active = _Active(np.arange(rows), None, hidden, hidden, state, {})
        scores: Tensor | None = None
        exits = np.zeros(rows, dtype=np.int64)
        for exit_number in range(1, self.network.num_exits + 1):
            self._advance(exit_number, active, position)
            last = exit_number == self.network.num_exits
            if not last and not is_evaluated(self.network, self.policy, exit_number):
                self._remember(exit_number, active)
                continue
            signals = self._signals(exit_number, active, position)
            # At the last exit all tokens exit; the policy is stepped if its output depends on it.
            if not last or self.policy.needs_all_labels:
                mask, active.state = self.policy.step(exit_number, signals, active.state)
            exiting = np.ones(len(active.host), dtype=bool) if last else mask.cpu().numpy()
            if not exiting.any():
                self._remember(exit_number, active)
                continue
            exits[active.host[exiting]] = exit_number
            found = self._log_probabilities(exit_number, signals, active, exiting)
            if scores is None:
                scores = found if exiting.all() else found.new_zeros(rows, found.shape[1])
            if scores is not found:
                scores[cache.on_device(active.host[exiting])] = found
            if not last:
                self._exit(active, exiting, position)
            if exiting.all():
                break
            self._remember(exit_number, active)
        assert scores is not None, "all tokens exit at the last exit"
        depths = np.array([0, *self.network.exit_layers])[exits]
        decoder, patches = cache.decoder, cache.patches
        count_tokens(self.macs, decoder, depths, position, filled, image_depths, patches, self.skipped_blocks)
        return TokenScores(scores, exits)

    def _signals(self, exit_number: int, active: _Active, position: int) -> TokenSignals:
        return self.network.token_signals(
            exit_number,
            active.hidden[:, 0],
            active.previous[:, 0],
            active.hidden.new_full((len(active.host),), position, dtype=torch.int64),
            active.memory,
            self.macs.count_heads,
        )

    def _remember(self, exit_number: int, active: _Active) -> None:
        """Stores the tensors that heads of later exits read; at full depth these heads are not evaluated."""
        if self.network.remembers and self.policy.leaves_early:
            self.network.remember(exit_number, active.hidden[:, 0], active.memory)

    def _advance(self, exit_number: int, active: _Active, position: int) -> None:
        """Runs the blocks up to the exit."""
        layers = self.network.exit_layers
        first = 1 if exit_number == 1 else layers[exit_number - 2] + 1
        for layer in range(first, layers[exit_number - 1] + 1):
            active.previous = active.hidden
            active.hidden = self._block(layer, active, position)

    def _block(self, layer: int, active: _Active, position: int) -> Tensor:
        cache, decoder = self.cache, self.network.backbone.decoder
        if self.policy.leaves_early and layer > self.network.exit_layers[0]:
            missing = cache.missing(layer, active.host, position)
            if missing is not None:
                self.skipped_blocks.fill(layer, *missing, cache)
                cache.filled[missing[0][:, None], missing[1]] = layer
        query, key, value = decoder.project(layer, active.hidden)
        cache.write(layer, active.rows, position, (key, value), active.host)
        cross, beams = cache.cross_keys_values(layer, active.host, active.rows)
        return decoder.block(
            layer,
            active.hidden,
            query,
            cache.read(layer, active.rows, position + 1),
            cross=cross,
            beams=beams,
        )

    def _log_probabilities(
        self, exit_number: int, signals: TokenSignals, active: _Active, exiting: np.ndarray
    ) -> Tensor:
        """`(exiting, vocabulary)` of the rows whose token exits."""
        if self.policy.needs_all_labels:
            output = self.policy.output(exit_number, signals, active.state).float()
            return output if exiting.all() else output[self.cache.on_device(exiting.nonzero()[0])]
        computed = "logits" in vars(signals)
        if exiting.all() or computed:
            logits = signals.logits
            chosen = logits if exiting.all() else logits[self.cache.on_device(exiting.nonzero()[0])]
        else:
            exited = self.cache.on_device(exiting.nonzero()[0])
            hidden = active.hidden[exited, 0]
            memory = {name: value.index_select(0, exited) for name, value in active.memory.items()}
            self.macs.count_heads(len(hidden) * self.network.head_macs(exit_number))
            chosen = self.network.exit_logits(exit_number, hidden, memory)
        return chosen.float().log_softmax(-1)

    def _exit(self, active: _Active, exiting: np.ndarray, position: int) -> None:
        """Stores the states of tokens that exit, for the blocks that they skip, and removes their rows."""
        exited = self.cache.on_device(exiting.nonzero()[0])
        self.cache.hidden[self.cache.on_device(active.host[exiting]), position] = active.hidden[exited, 0]
        kept = self.cache.on_device((~exiting).nonzero()[0])
        active.host = active.host[~exiting]
        active.rows = self.cache.on_device(active.host)
        active.hidden = active.hidden.index_select(0, kept)
        active.previous = active.previous.index_select(0, kept)
        active.state = active.state.index_select(kept)
        active.memory = {name: value.index_select(0, kept) for name, value in active.memory.items()}


def is_evaluated(network: Any, policy: ExitPolicy, exit_number: int) -> bool:
    """Whether an exit before the last is evaluated: the policy needs it, or it computes the shortlist."""
    makes_shortlist = exit_number == 1 and network.shortlist is not None and policy.leaves_early
    return policy.needs(exit_number) or makes_shortlist
