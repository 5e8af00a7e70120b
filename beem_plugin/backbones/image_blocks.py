"""The blocks of an image encoder, and a function to call in place of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor


class RunBlock(Protocol):
    """Called in place of a block."""

    def __call__(self, stage: int, block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """
        The output of a block, `(images, patches, size)` as its input `hidden`. `run` is the block itself, for all or
        some of the images; stages, and blocks within their stage, are numbered from 0.
        """
        ...


def image_stages(encoder: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """
    The blocks of a transformers image encoder, by stages of equal state shape. ViT, DeiT, BEiT and DINOv2 have one
    stage; Swin merges patches between stages. Found by the names of their classes, because their attribute paths change
    from release to release.
    """
    return [
        list(module)
        for module in encoder.modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module)
        and all(type(child).__name__.endswith("Layer") for child in module)
    ]


@contextmanager
def intercepted_blocks(encoder: torch.nn.Module, run_block: RunBlock) -> Iterator[None]:
    """
    Within the context, `encoder` calls `run_block` in place of its blocks. Embeddings, the merging of patches and the
    final normalisation are unchanged. Attention weights are not returned.
    """
    # How many values a block returns beside the state; None if it returns the state itself. A block that is skipped
    # returns as many as the last one that ran, and the first block is never skipped.
    others: int | None = None

    def replaced(
        original: Callable[..., Any], stage: int, block: int, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        def run(hidden: Tensor) -> Tensor:
            nonlocal others
            output = original(hidden, *args, **kwargs)
            if not isinstance(output, tuple):
                return output
            others = len(output) - 1
            return output[0]

        result = run_block(stage, block, hidden_states, run)
        return result if others is None else (result, *[None] * others)

    changed: list[Any] = []
    try:
        for stage, members in enumerate(image_stages(encoder)):
            for number, module in enumerate(members):
                module.forward = partial(replaced, module.forward, stage, number)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward  # back to the method of the class
