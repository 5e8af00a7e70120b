"""Exits over labels: heads, signals, and what exits store for later ones, in the state, so that engines regroup it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.exits.branches import BranchedHead
from beem_plugin.exits.heads import ExitHead
from beem_plugin.exits.outputs import HeadOutput
from beem_plugin.exits.signal_modules import ExitView, SignalModule
from beem_plugin.exits.signals import ExitSignals

MEMORY = "exit_memory."
"""Prefix of the entries of `BackboneState.batched` that are written by exits, not by the backbone."""

NEW_MEMORY = "new_exit_memory."
"""Prefix of the entries that the current exit wrote; they are renamed to `MEMORY` when the state advances."""


def memory_of(state: BackboneState) -> Mapping[str, Tensor]:
    """The tensors that earlier exits stored for the samples of `state`."""
    return {name.removeprefix(MEMORY): value for name, value in state.batched.items() if name.startswith(MEMORY)}


def with_memory(
    state: BackboneState, tensors: dict[str, Tensor], token_dims: dict[str, tuple[int, ...]] | None = None
) -> BackboneState:
    """`state` with these tensors added or replaced; their first dimension is the samples."""
    dims = {**state.token_dims, **(token_dims or {})}
    return replace(state, batched={**state.batched, **tensors}, token_dims=dims)


def commit_memory(state: BackboneState) -> BackboneState:
    """A copy of `state` in which entries with prefix `NEW_MEMORY` have prefix `MEMORY`."""
    renamed = {name.replace(NEW_MEMORY, MEMORY, 1): value for name, value in state.batched.items()}
    return replace(state, batched=renamed)


class EncoderExits(torch.nn.Module):
    """The exits of a `MultiExitEncoder`, which builds them."""

    exits: torch.nn.ModuleList
    exit_layers: list[int]
    signal_modules: torch.nn.ModuleDict

    def _find_memory(self) -> None:
        """Finds which outputs later exits read; called when heads and signal modules are built."""
        modules = {name: cast(SignalModule, module) for name, module in self.signal_modules.items()}
        pooled = [name for name, module in modules.items() if module.needs_previous_pooled]
        hidden = [name for name, module in modules.items() if module.needs_previous_hidden_states]
        self._keeps_pooled, self._keeps_hidden_states = bool(pooled), bool(hidden)
        heads = [head.head if isinstance(head, BranchedHead) else head for head in self.exits]
        readers = {type(head).__name__ for head in heads if cast(ExitHead, head).remembers}
        self.memory_readers = sorted(readers) + sorted({*pooled, *hidden})
        """Names of the heads and signals that read outputs of earlier exits."""

    def head(self, exit_number: int) -> ExitHead:
        return cast(ExitHead, self.exits[exit_number - 1])

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def available_signals(self) -> set[str]:
        """Names of the signals that `exit_signals` computes in addition to logits."""
        return set(self.signal_modules)

    @property
    def carries_memory(self) -> bool:
        """Whether states carry what exits read of earlier ones."""
        return bool(self.memory_readers)

    def _writes_memory(self, exit_number: int) -> bool:
        """Whether later exits read outputs of this one."""
        is_early = 1 <= exit_number < self.num_exits
        return is_early and (self._keeps_pooled or bool(self.head(exit_number).remembers))

    def _memory_tensors(self, exit_number: int, state: BackboneState, output: HeadOutput) -> dict[str, Tensor]:
        found = self.head(exit_number).memory_after(output, memory_of(state))
        tensors = {NEW_MEMORY + name: value for name, value in found.items()}
        if self._keeps_pooled:
            tensors[NEW_MEMORY + "previous_pooled"] = output.pooled
        return tensors

    def exit_output(self, exit_number: int, state: BackboneState) -> HeadOutput:
        """The output of exit `exit_number`, logits and signals in float32."""
        read = (state.hidden_states, state.attention_mask, memory_of(state))
        output = self.head(exit_number)(*read)
        output.logits = output.logits.float()
        if self.signal_modules:
            view = ExitView(exit_number, output.logits, output.pooled, *read)
            output.signals = {name: module(view) for name, module in self.signal_modules.items()}
        return output

    def exit_logits(self, exit_number: int, state: BackboneState) -> Tensor:
        """`(batch, labels)` float32 for any precision of the backbone."""
        return self.head(exit_number)(state.hidden_states, state.attention_mask, memory_of(state)).logits.float()

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        """Logits and signals of exit `exit_number`; adds tensors for later exits to `state`."""
        writes_memory = self._writes_memory(exit_number)
        if not self.signal_modules and not writes_memory:
            return ExitSignals(self.exit_logits(exit_number, state))
        output = self.exit_output(exit_number, state)
        if writes_memory:
            # `advance` created the dictionary, which is not shared with other states.
            state.batched.update(self._memory_tensors(exit_number, state, output))
        return ExitSignals(output.logits, output.signals)
