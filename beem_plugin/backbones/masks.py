"""
Additive attention masks, made once a batch.

The helpers of transformers read the mask's values on every call, which stalls a GPU and cannot be captured in a CUDA
graph, and make a mask `(batch, 1, tokens, tokens)` where one row a sample is enough.
"""

import torch
from torch import Tensor


def may_have_padding(attention_mask: Tensor) -> bool:
    """False if attention needs no mask; a GPU or a traced graph is not asked, which would wait or depend on it."""
    if attention_mask.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return not bool(attention_mask.all())


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """
    0 where attention is allowed, the lowest finite number elsewhere; of the same shape.

    Finite, so that a row of padding alone gives an average and not NaN. Additive, because both the sdpa and the eager
    attention take such a mask, and a boolean one would be converted in every block.
    """
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)


def key_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`(batch, 1, 1, tokens)` additive mask of padding, which broadcasts over heads and queries."""
    return additive(attention_mask[:, None, None, :], dtype)


def local_band(length: int, reach: int, device: torch.device) -> Tensor:
    """`(1, 1, tokens, tokens)` bool: true where query and key are at most `reach` tokens apart."""
    position = torch.arange(length, device=device)
    return ((position[:, None] - position[None, :]).abs() <= reach)[None, None]
