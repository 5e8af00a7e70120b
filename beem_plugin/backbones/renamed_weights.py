"""
Maps state dicts between the parameter names of different releases of transformers.

Modules of image encoders are renamed from release to release (DINOv2's `attention.attention.query` became
`attention.q_proj`), so that a state dict of one release does not fit a model of another. Besides, one matrix was split
into two. Text encoders and GPT-2 kept their names.
"""

import re

import torch
from torch import Tensor

IMAGE_ENCODER = "transformer_model.encoder."
"""The prefix of the image encoder's parameter names."""

# From older to newer names, in the order of application: the attention's `output.dense` before the block's.
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

# One matrix in older releases; its upper and lower half are two in newer ones.
FUSED = re.compile(r"\.mlp\.weights_in\.")
HALVES = (".mlp.gate_proj.", ".mlp.up_proj.")

# A buffer computed from the window's size, which older releases stored.
COMPUTED = ".relative_position_index"


def newer_name(name: str) -> str:
    """The name of an image encoder's parameter in newer releases; other names are returned unchanged."""
    before, found, own = name.partition(IMAGE_ENCODER)
    if not found:
        return name
    for pattern, replacement in NEWER_NAMES:
        own = pattern.sub(replacement, own)
    return before + found + own


def newer_names(name: str) -> list[str]:
    """The newer name, or the names of the two halves."""
    newer = newer_name(name)
    return [FUSED.sub(half, newer) for half in HALVES] if IMAGE_ENCODER in newer and FUSED.search(newer) else [newer]


def renamed(state: dict[str, Tensor], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames weights for a model; those without one counterpart keep their names, which a strict load reports."""
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
    """A tensor as it is for one name, or copies of its halves for two."""
    return [value] if len(names) == 1 else [part.clone() for part in value.chunk(2)]


def is_computed(name: str) -> bool:
    return IMAGE_ENCODER in name and name.endswith(COMPUTED)
