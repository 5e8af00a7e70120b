"""Computes one token of every caption, each with its own exit."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones.gpt2_decoder import KeysValues
from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.meter import CaptionMacs, count_tokens
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.token_signals import TokenSignals


@dataclass
class TokenScores:
    """Of each row: the log-probabilities at its token's exit, and the exit's number."""

    log_probabilities: Tensor  # (rows, vocabulary) float32
    exits: np.ndarray  # (rows,) int64, 1-based


@dataclass
class _Active:
    """The rows whose token has not exited, on the host and on the device (`None` for all), and their tensors."""

    host: np.ndarray
    rows: Tensor | None
    hidden: Tensor  # (rows, 1, hidden)
    previous: Tensor  # the input of the last block
    read: Tensor  # the input of the exit's head
    state: ExitState
    memory: dict[str, Tensor]


@dataclass
class Stepper:
    """Runs one token of each row through the blocks up to its exit; costs are added to `macs`."""

    network: Any
    policy: ExitPolicy
    cache: DecoderCache
    skipped_blocks: SkippedBlocks
    macs: CaptionMacs

    def step(self, tokens: Tensor, position: int) -> TokenScores:
        """`tokens` `(rows,)` int64 are the last tokens of the rows, at `position` (0 for BOS)."""
        rows, device, cache = len(tokens), tokens.device, self.cache
        filled, image_depths = cache.filled[:, :position].copy(), cache.image_depths.copy()
        hidden = self.network.backbone.decoder.embed(tokens.unsqueeze(1), position)
        state = self.policy.start(rows, self.network.num_exits, device)
        active = _Active(np.arange(rows), None, hidden, hidden, hidden, state, {})
        scores: Tensor | None = None
        exits = np.zeros(rows, dtype=np.int64)
        for exit_number in range(1, self.network.num_exits + 1):
            self._advance(exit_number, active, position)
            if self._is_read(exit_number):
                self._read(exit_number, active, position)
            last = exit_number == self.network.num_exits
            if not last and not is_evaluated(self.network, self.policy, exit_number):
                self._remember(exit_number, active)
                continue
            signals = self._signals(exit_number, active, position)
            # At the last exit all tokens exit; the policy is stepped if its output depends on it.
            if not last or self.policy.needs_all_labels:
                mask, active.state = self.policy.checked_step(exit_number, signals, active.state)
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

    def _is_read(self, exit_number: int) -> bool:
        """Whether the input of the exit's head is computed, for its logits or for heads of later exits."""
        evaluated = exit_number == self.network.num_exits or is_evaluated(self.network, self.policy, exit_number)
        return evaluated or (self.network.remembers and self.policy.leaves_early)

    def _read(self, exit_number: int, active: _Active, position: int) -> None:
        """Computes the input of the exit's head, and stores keys and values of a branch in which tokens attend."""

        def store(key: Tensor, value: Tensor) -> KeysValues:
            return self.cache.append(-exit_number, active.rows, position, key, value)

        active.read = self.network.exit_input(exit_number, active.hidden, store)
        self.macs.count_heads(len(active.host) * self.network.branch_macs(exit_number, position + 1))

    def _signals(self, exit_number: int, active: _Active, position: int) -> TokenSignals:
        return self.network.token_signals(
            exit_number,
            active.hidden[:, 0],
            active.previous[:, 0],
            active.hidden.new_full((len(active.host),), position, dtype=torch.int64),
            active.memory,
            self.macs.count_heads,
            active.read[:, 0],
        )

    def _remember(self, exit_number: int, active: _Active) -> None:
        """Stores the tensors that heads of later exits read; at full depth these heads are not evaluated."""
        if self.network.remembers and self.policy.leaves_early:
            self.network.remember(exit_number, active.read[:, 0], active.memory)

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
                self._fill_branch(layer, *missing)
                cache.filled[missing[0][:, None], missing[1]] = layer
        query, key, value = decoder.project(layer, active.hidden)
        keys_values = cache.append(layer, active.rows, position, key, value)
        cache.filled[active.host, position] = layer
        cross, beams = cache.cross_keys_values(layer, active.host, active.rows)
        return decoder.block(layer, active.hidden, query, keys_values, cross=cross, beams=beams)

    def _fill_branch(self, layer: int, rows: np.ndarray, positions: np.ndarray) -> None:
        """Stores keys and values of tokens that skipped `layer`, in the branch of the exit after it."""
        for number, branch in self.network.attending_branches.items():
            if self.network.exit_layers[number - 1] == layer and self._is_read(number):
                index, where = self.cache.on_device(rows), self.cache.on_device(positions)
                states = self.cache.hidden[index.unsqueeze(1), where]  # (r, n, hidden)
                self.cache.write_many(-number, index, where, branch.keys_values(states))
                tokens = sum(len(set(row)) for row in positions.tolist())
                self.macs.count_heads(tokens * branch.keys_values_macs())

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
            read = active.read[exited, 0]
            memory = {name: value.index_select(0, exited) for name, value in active.memory.items()}
            self.macs.count_heads(len(read) * self.network.head_macs(exit_number))
            chosen = self.network.exit_logits(exit_number, read, memory)
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
        active.read = active.read.index_select(0, kept)
        active.state = active.state.index_select(kept)
        active.memory = {name: value.index_select(0, kept) for name, value in active.memory.items()}


def is_evaluated(network: Any, policy: ExitPolicy, exit_number: int) -> bool:
    """Whether an exit before the last is evaluated: the policy needs it, or it computes the shortlist."""
    makes_shortlist = exit_number == 1 and network.shortlist is not None and policy.leaves_early
    return policy.needs(exit_number) or makes_shortlist
