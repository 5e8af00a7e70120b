"""
Weights under the names of another release of transformers.

Image encoders call their modules differently from release to release (DINOv2's `attention.attention.query` became
`attention.q_proj`), so that a state dict written under one does not fit a model built under another. Nothing but names
changed, and one matrix that became two; this maps them in either direction. Text encoders and GPT-2 kept their names.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

IMAGE_ENCODER = "transformer_model.encoder."
"""What follows it in a parameter's name is the image encoder's own name for it."""

# From older names to newer ones, applied in this order: the attention's `output.dense` before that of the block.
NEWER_NAMES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^encoder\.relative_position_bias\.", "shared_position_bias."),
        (r"^encoder\.layer\.(?=\d)", "layers."),
        (r"\.attention\.(?:attention|self)\.query\.", ".attention.q_proj."),
        (r"\.attention\.(?:attention|self)\.key\.", ".attention.k_proj."),
        (r"\.attention\.(?:attention|self)\.value\.", ".attention.v_proj."),
        (r"\.attention\.output\.dense\.", ".attention.o_proj."),
        (r"\.intermediate\.dense\.", ".mlp.fc1."),
        (r"\.output\.dense\.", ".mlp.fc2."),
        (r"\.attention\.attention\.relative_position_bias\.", ".relative_position_bias."),
        (
            r"\.attention\.self\.relative_position_(?=bias_table)",
            ".attention.relative_position_bias.relative_position_",
        ),
        (r"\.mlp\.weights_out\.", ".mlp.down_proj."),
    )
]

# One matrix in older releases, two in newer ones: its upper and its lower half.
FUSED = re.compile(r"\.mlp\.weights_in\.")
HALVES = (".mlp.gate_proj.", ".mlp.up_proj.")

# Counted from the window's size, never learned; older releases stored it.
COMPUTED = ".relative_position_index"


def newer_name(name: str) -> str:
    """The name that newer releases have for a parameter of an image encoder; any other name as it is."""
    before, found, own = name.partition(IMAGE_ENCODER)
    if not found:
        return name
    for pattern, replacement in NEWER_NAMES:
        own = pattern.sub(replacement, own)
    return before + found + own


def newer_names(name: str) -> list[str]:
    """One name, or those of the two halves."""
    newer = newer_name(name)
    return [FUSED.sub(half, newer) for half in HALVES] if IMAGE_ENCODER in newer and FUSED.search(newer) else [newer]


def renamed(state: dict[str, Tensor], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """
    Nothing is dropped: what has no counterpart, or more than one, keeps its name, so that a strict load names it.

    # Parameters

    state : `dict[str, Tensor]`
        A state dict, written under any release of transformers.
    model : `dict[str, Tensor]`
        The state dict of the model that it is meant for.

    # Returns

    `dict[str, Tensor]`
        `state` under the names of `model`.
    """
    result = {name: value for name, value in state.items() if name in model}
    newest: dict[str, tuple[str, Tensor]] = {}
    left = {}
    for name, value in state.items():
        if name in model:
            continue
        names = newer_names(name)
        if any(new in newest for new in names):
            left[name] = value
        else:
            newest.update({new: (name, part) for new, part in zip(names, halves(value, names))})
    for name in model:
        if name in state:
            continue
        names = newer_names(name)
        if all(new in newest for new in names):
            parts = [newest.pop(new)[1] for new in names]
            result[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        elif is_computed(name):
            result[name] = model[name]
    left |= {name: state[name] for name, _ in newest.values() if not is_computed(name)}
    return result | left


def halves(value: Tensor, names: list[str]) -> list[Tensor]:
    """A tensor's part for each of one or two names, with memory of its own."""
    return [value] if len(names) == 1 else [part.clone() for part in value.chunk(2)]


def is_computed(name: str) -> bool:
    return IMAGE_ENCODER in name and name.endswith(COMPUTED)
