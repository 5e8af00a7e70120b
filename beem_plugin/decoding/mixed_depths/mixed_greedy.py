"""
Greedy decoding in which every launch computes one block of each caption; tokens may be in different blocks.

If a batch computed the same block for all captions, captions whose token has exited would wait for the deepest token,
and a batch would be as slow as full depth. Instead, a caption whose token has exited starts its next token while others
continue; kernels multiply each token by the weights of its own block. The policy's own `step` decides on the device.
The host replays a graph of a few launches until all captions have ended.

Full depth uses the same path. Launches of whole blocks with cuBLAS were 13 % faster for one caption, which does not
justify a second path.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs, count_captions
from beem_plugin.decoding.mixed_depths.advance import advance
from beem_plugin.decoding.mixed_depths.attention import mixed_attention
from beem_plugin.decoding.mixed_depths.linear import mixed_linear
from beem_plugin.decoding.mixed_depths.lists import list_heads, list_tokens
from beem_plugin.decoding.mixed_depths.policy_kernel import TokenPolicyKernel
from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.decoding.mixed_depths.summary import summarize
from beem_plugin.decoding.skipped_blocks import Copy, Propagate, Recompute, SkippedBlocks
from beem_plugin.execution.compiled.capture import Recorder, await_pinned
from beem_plugin.execution.compiled.step_trace import UnsupportedStep
from beem_plugin.exits.policy import ExitPolicy

LAUNCHES = 4
"""Launches of a graph where tokens exit early: blocks between two checks of which captions have ended."""


class MixedGreedy:
    """
    A network, a bound and calibrated policy and the settings of decoding, compiled for up to `rows` captions.
    Immutable: changes of the network or the policy after construction have no effect. The network is one that
    `DecoderWeights` supports; raises `UnsupportedStep` for a policy or `skipped_blocks` that are not supported.
    """

    def __init__(
        self,
        network: Any,
        policy: ExitPolicy,
        skipped_blocks: SkippedBlocks,
        state: DecodingState,
        rows: int,
        eos: int,
        recorder: Recorder,
    ) -> None:
        if type(skipped_blocks) not in (Propagate, Recompute, Copy):
            raise UnsupportedStep(f"skipped_blocks of type {type(skipped_blocks).__name__}")
        if policy.needs_all_labels:
            raise UnsupportedStep("the policy reads the probabilities of all tokens")
        self.network, self.state, self.rows, self.eos, self.recorder = network, state, rows, eos, recorder
        self.decoder = network.backbone.decoder
        self.skipped_blocks = skipped_blocks
        self.leaves_early = policy.leaves_early
        self.copies = self.leaves_early and isinstance(skipped_blocks, Copy)
        self.recomputes = self.leaves_early and isinstance(skipped_blocks, Recompute)
        self.exit_layers: list[int] = list(network.exit_layers)
        exits = [number for number in range(1, network.num_exits) if policy.needs(number)] + [network.num_exits]
        names = sorted(network.available_signals - {"position"})
        signals = {
            "top_token": state.token[:rows],
            "top_probability": state.confidence[:rows],
            "entropy": state.entropy[:rows],
            "margin": state.margin[:rows],
            "position": state.positions[:rows],
            **{name: torch.zeros(rows, device=state.hidden.device) for name in names},
        }
        self.policy_step = TokenPolicyKernel(policy, exits, signals, state.use_kernels)
        self.last_exit = self.policy_step.last_exit
        # The signals of hidden states that the policy reads.
        self.hidden_signals = {name: signals[name] for name in names if name in self.policy_step.signals_used}
        exits = [number for number in exits if number <= self.last_exit]
        exit_of_block = torch.zeros(state.num_layers, dtype=torch.int32)
        for number in exits:
            exit_of_block[self.exit_layers[number - 1] - 1] = number
        self.exit_of_block = exit_of_block.to(state.layers.device)
        self.blocks = self.exit_layers[self.last_exit - 1]
        # With one exit, captions are in the same block: a graph is one token, and only its last launch has an exit.
        in_step = not self.policy_step.exits
        self.has_exit = [*[False] * (self.blocks - 1), True] if in_step else [True] * LAUNCHES
        # If decisions do not depend on logits, heads are computed for exiting tokens only.
        self.heads_first = in_step or self.policy_step.reads_logits
        head_macs = [network.head_macs(number) for number in range(1, network.num_exits + 1)]
        self.head_macs = np.array([0, *(macs if number in exits else 0 for number, macs in enumerate(head_macs, 1))])
        self.host_progress = recorder.pinned(*state.progress.shape, dtype=torch.int32)
        state.reset(0)
        self.start = recorder.capture(self._launches)

    def decode(self, image_states: Tensor, bos: int, macs: CaptionMacs) -> list[GeneratedCaption]:
        """Captions of up to `rows` images, from `(images, patches, hidden)`; adds the cost of decoding."""
        captions, state = len(image_states), self.state
        if state.patches:
            for block in range(self.blocks):
                keys, values = self.decoder.cross_keys_values(block + 1, image_states)
                state.image_keys[block, :captions], state.image_values[block, :captions] = keys, values
        state.reset(captions, self.exit_of_block[0])
        first = state.token_embeddings[bos] + state.position_embeddings[0]
        state.hidden.view(state.capacity, state.max_tokens, -1)[:captions, 0] = first
        self._run_until_ended()
        packed = torch.stack([state.tokens, state.exits, state.log_probabilities.view(torch.int32)])
        tokens, exits, log_probabilities = packed[:, :captions].cpu().numpy()
        found = []
        for row, count in enumerate((exits > 0).sum(1).tolist()):
            logs = log_probabilities[row, :count].view(np.float32).tolist()
            found.append(GeneratedCaption(tokens[row, :count].tolist(), exits[row, :count].tolist(), logs, sum(logs)))
        depths = np.array([0, *self.exit_layers])[exits]
        heads = np.cumsum(self.head_macs) if self.heads_first else self.head_macs
        macs.heads += float(heads[exits].sum())
        count_captions(macs, self.decoder, depths, state.patches, self.skipped_blocks)
        return found

    def _run_until_ended(self) -> None:
        """Starts the graph until all captions have ended; one start is queued while the host reads the last result."""
        limit = self.state.max_tokens * self.blocks // len(self.has_exit) + 2
        self.recorder.wait()  # an interrupted batch may still be queued
        progress = self.host_progress.numpy()
        progress[:] = 0
        for started in range(limit):
            self.start()
            if started and not await_pinned(partial(_has_started, progress, started), self.recorder.wait):
                raise RuntimeError(f"{progress[-1]} of {started} starts have finished, and none is queued")
            if started and (progress[: self.rows] < 0).all():
                return
        self.recorder.wait()
        if not (progress[: self.rows] < 0).all():
            raise RuntimeError(f"captions have not ended after {limit} starts")

    def _launches(self) -> None:
        for has_exit in self.has_exit:
            self._launch(has_exit)
        self.state.launches.add_(1)
        self.host_progress.copy_(self.state.progress, non_blocking=True)

    def _launch(self, has_exit: bool) -> None:
        """One block for each caption, and, if `has_exit`, the exit after it."""
        state, weights, rows = self.state, self.state.weights, self.rows
        hidden, query, attended, every = state.hidden, state.query, state.attention_output, self.recomputes
        fills = self.leaves_early and not self.copies
        list_tokens(state, rows, self.leaves_early, fills, every)
        before = state.hidden[state.places(rows)] if "similarity" in self.hidden_signals else None
        mixed_linear(state, rows, "keys_values", hidden, weights.attention_in, query, fills)
        mixed_attention(state, rows, False, every, self.copies)
        mixed_linear(state, rows, "add", attended, weights.attention_out, hidden, every)
        if state.patches:
            mixed_linear(state, rows, "store", hidden, weights.cross_in, query, every)
            mixed_attention(state, rows, True, every, self.copies)
            mixed_linear(state, rows, "add", attended, weights.cross_out, hidden, every)
        mixed_linear(state, rows, "gelu", hidden, weights.mlp_in, state.inner, every)
        mixed_linear(state, rows, "add", state.inner, weights.mlp_out, hidden, every)
        leaves = self._decide(before) if has_exit else self.policy_step.leaves
        advance(state, rows, leaves, self.exit_of_block, self.eos, self.last_exit)

    def _decide(self, before: Tensor | None) -> Tensor:
        """`(rows,)` bool: the rows that exit, if at an exit; computes their tokens."""
        self._read_hidden(before)
        exit_numbers = self.state.at_exit[: self.rows]
        if self.heads_first:
            self._heads(exit_numbers)
        leaves = self.policy_step(exit_numbers)
        if not self.heads_first:
            self._heads(torch.where(leaves | (exit_numbers == self.last_exit), exit_numbers, 0))
        return leaves

    def _read_hidden(self, before: Tensor | None) -> None:
        """Computes the signals of the tokens' hidden states; `before` are the inputs of their blocks."""
        if not self.hidden_signals:
            return
        current = self.state.hidden[self.state.places(self.rows)]
        for name, value in self.hidden_signals.items():
            if before is not None and name == "similarity":
                value.copy_(functional.cosine_similarity(current.float(), before.float(), dim=-1))
            else:
                value.copy_(self.network.predicted_error(1, current))  # one module serves all exits

    def _heads(self, exit_numbers: Tensor) -> None:
        state, rows = self.state, self.rows
        list_heads(state, rows, exit_numbers)
        mixed_linear(state, rows, "head", state.hidden, state.weights.vocabulary, state.logits)
        summarize(state, rows, exit_numbers)


def _has_started(progress: np.ndarray, starts: int) -> bool:
    return bool(progress[-1] >= starts)
