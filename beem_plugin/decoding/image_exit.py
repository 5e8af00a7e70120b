"""Early exits of images from the image encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones.image_blocks import image_stages, intercepted_blocks
from beem_plugin.common.errors import check_number
from beem_plugin.common.registry import FromParams
from beem_plugin.execution.metering.macs import counting


@dataclass
class EncodedImages:
    states: Tensor  # (images, patches, hidden), as the decoder takes them
    blocks: list[int] | None = None  # the number of blocks that each image went through, if images may exit
    num_blocks: int = 0  # of the encoder
    macs: float | None = None  # of all images, including the projection to the decoder's size


class ImageExit(FromParams):
    """
    Similarity exits in the image encoder (MuE, Tang et al. 2023): an image exits after the first block that changes
    it little, cos(h_i, h_{i-1}) > threshold, over all of its patches; the final normalisation follows. Each image has
    its own decision: MuE's release computes one cosine over the whole batch.

    The stages of Swin have different shapes: an image exits a stage and continues with the next one.

    # Parameters

    threshold : `float`
        tau, a cosine; with 1 or more no image exits.
    min_block : `int`, optional (default = `1`)
        The first block of the encoder after which an image may exit.
    """

    def __init__(self, threshold: float, min_block: int = 1) -> None:
        check_number("decoding.image_exit.threshold", threshold, low=-1)
        check_number("decoding.image_exit.min_block", min_block, low=1)
        self.threshold = threshold
        self.min_block = min_block

    def encode(self, backbone: Any, pixel_values: Tensor) -> EncodedImages:
        """`backbone`, in evaluation mode, encodes `pixel_values` `(images, channels, height, width)`."""
        encoder = backbone.image_encoder
        sizes = [len(stage) for stage in image_stages(encoder)]
        count = len(pixel_values)
        ran = torch.zeros(count, sum(sizes), dtype=torch.bool)
        active = torch.arange(count)  # images that have not exited the stage, on the host

        def run_block(stage: int, block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
            nonlocal active
            if block == 0:
                active = torch.arange(count)
            if not len(active):
                return hidden
            number = sum(sizes[:stage]) + block
            ran[active, number] = True
            all_active = len(active) == count
            index = active.to(hidden.device)
            before = hidden if all_active else hidden.index_select(0, index)
            after = run(before)
            if block + 1 < sizes[stage] and number + 1 >= self.min_block:
                active = active[~self.leaves(before, after).cpu()]
            return after if all_active else hidden.index_copy(0, index, after)

        with intercepted_blocks(encoder, run_block):
            states = backbone.encode_images(pixel_values)
        costs, rest = image_block_macs(backbone, tuple(pixel_values.shape[1:]))
        macs = float((ran.double() @ costs).sum()) + count * rest
        return EncodedImages(states, ran.sum(1).tolist(), sum(sizes), macs)

    def leaves(self, before: Tensor, after: Tensor) -> Tensor:
        """`(images,)` bool: which images exit after a block with these input and output states."""
        similarity = functional.cosine_similarity(before.flatten(1).double(), after.flatten(1).double(), dim=-1)
        return similarity > self.threshold


def image_block_macs(backbone: Any, shape: tuple[int, ...]) -> tuple[Tensor, float]:
    """Cost of each block, `(blocks,)`, and of the rest, on an image `(channels, height, width)`; run once a shape."""
    costs_by_shape = _COSTS.setdefault(backbone, {})
    if shape not in costs_by_shape:
        parameter = next(backbone.parameters())
        image = torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype)
        costs: list[float] = []

        def run_block(stage: int, block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
            before = counter.get_total_flops()
            result = run(hidden)
            costs.append((counter.get_total_flops() - before) / 2)
            return result

        with torch.no_grad(), counting() as counter, intercepted_blocks(backbone.image_encoder, run_block):
            backbone.encode_images(image)
        total = counter.get_total_flops() / 2
        costs_by_shape[shape] = torch.tensor(costs, dtype=torch.float64), total - sum(costs)
    return costs_by_shape[shape]


def image_macs(backbone: Any, shape: tuple[int, ...]) -> float:
    """Multiply-accumulates of the whole image encoder on one image of `shape` `(channels, height, width)`."""
    blocks, rest = image_block_macs(backbone, shape)
    return float(blocks.sum()) + rest


_COSTS: WeakKeyDictionary[Any, dict[tuple[int, ...], tuple[Tensor, float]]] = WeakKeyDictionary()
