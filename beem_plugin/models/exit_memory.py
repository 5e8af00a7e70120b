"""What exits leave for later exits in the state of the samples, where every engine regroups it with them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from beem_plugin.backbones import BackboneState

MEMORY = "exit_memory."
"""Prefix of the entries of `BackboneState.batched` that belong to the exits, not to the backbone."""

NOTES = "exit_notes."
"""Prefix of the entries that become memory when the state advances to the next exit."""


def memory_of(state: BackboneState) -> Mapping[str, Tensor]:
    """The tensors that earlier exits left for the samples of `state`."""
    return {name.removeprefix(MEMORY): value for name, value in state.batched.items() if name.startswith(MEMORY)}


def with_memory(
    state: BackboneState, tensors: dict[str, Tensor], token_dims: dict[str, tuple[int, ...]] | None = None
) -> BackboneState:
    """`state` with these tensors added or replaced; their first dimension is the samples."""
    return BackboneState(
        state.hidden_states,
        state.attention_mask,
        {**state.batched, **tensors},
        state.shared,
        {**state.token_dims, **(token_dims or {})},
    )


def remembering(state: BackboneState) -> BackboneState:
    """A copy of `state` whose notes are memory."""
    batched = {
        MEMORY + name.removeprefix(NOTES) if name.startswith(NOTES) else name: value
        for name, value in state.batched.items()
    }
    return BackboneState(state.hidden_states, state.attention_mask, batched, state.shared, state.token_dims)
