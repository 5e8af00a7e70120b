"""Tensors that exits store per sample for later exits, in the backbone state, so that engines regroup them."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from beem_plugin.backbones import BackboneState

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
