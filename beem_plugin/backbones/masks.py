"""Attention masks, made once a batch in the form in which the blocks add them to their scores.

transformers' own helpers look at the mask's values on every call, which stalls a GPU and cannot be captured in a
CUDA graph, and write out `(batch, 1, tokens, tokens)` where a row a sample says the same.
"""

from __future__ import annotations

import torch
from torch import Tensor


def may_have_padding(attention_mask: Tensor) -> bool:
    """
    False if it is known for certain and for free that nothing is padding, so that attention needs no mask.

    Only a CPU tensor is looked at: asking a GPU would wait for it, and a traced graph must not depend on the answer.
    """
    if attention_mask.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return not bool(attention_mask.all())


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """
    0 where attention is allowed, the lowest finite number elsewhere; the shape stays.

    Finite, so that a row of padding alone gives an average rather than NaN. Additive, because both the sdpa and the
    eager attention take it, and a boolean mask would be converted again in every block.
    """
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)


def key_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`(batch, 1, 1, tokens)` additive mask that hides padding; it broadcasts over heads and queries."""
    return additive(attention_mask[:, None, None, :], dtype)


def local_band(length: int, reach: int, device: torch.device) -> Tensor:
    """`(1, 1, tokens, tokens)` bool: true where query and key are at most `reach` tokens apart."""
    position = torch.arange(length, device=device)
    return ((position[:, None] - position[None, :]).abs() <= reach)[None, None]
