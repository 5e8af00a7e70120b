"""The cost of decoded captions against full depth, in layers and in multiply-accumulates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.decoding.decoding import Decoded
from beem_plugin.decoding.meter import CaptionMacs, full_depth


def decoded_speed(network: Any, decoded: Sequence[Decoded]) -> dict[str, Any]:
    """
    # Parameters

    network : `MultiExitDecoder`
    decoded : `Sequence[Decoded]`
        Batch by batch, decoded greedily: with beams the multiply-accumulates are those of all beams, the tokens those
        of the best, and `mac_speedup` is omitted.

    # Returns

    `dict[str, Any]`
        `layer_speedup` and the other keys of `depth_summary`, over tokens, EOS included; `mac_speedup`:
        multiply-accumulates of full depth with the last head alone, for captions of the same lengths, over those spent
        in total; `decoder_mac_speedup`: the same without the image encoder; `gmacs`: those spent on each part;
        `words`: the number of tokens. With an `image_exit` also `encoder_layer_speedup`, the encoder's blocks over
        those run, and `average_encoder_layer`.
    """
    captions = [caption for part in decoded for caption in part.captions]
    exits = torch.tensor([number for caption in captions for number in caption.exits], dtype=torch.int64)
    spent, full = CaptionMacs(), CaptionMacs()
    for part in decoded:
        spent = spent + part.macs
        full = full + full_depth(network, [len(caption.tokens) for caption in part.captions], part.patches)
    result: dict[str, Any] = {**depth_summary(exits, network.exit_layers), "words": len(exits)}
    if all(part.beams == 1 for part in decoded) and len(exits):
        images = sum(part.full_image_macs for part in decoded)
        result["mac_speedup"] = (images + full.decoder) / spent.total
        result["decoder_mac_speedup"] = full.decoder / spent.decoder
    result.update(encoder_depth(decoded))
    result["gmacs"] = {name: value / 1e9 for name, value in vars(spent).items()}
    return result


def encoder_depth(decoded: Sequence[Decoded]) -> dict[str, float]:
    """`encoder_layer_speedup` and `average_encoder_layer`; empty without an `image_exit`."""
    blocks = [number for part in decoded for number in part.image_blocks or ()]
    if not blocks:
        return {}
    average = sum(blocks) / len(blocks)
    depth = next(part.num_image_blocks for part in decoded if part.image_blocks)
    return {"encoder_layer_speedup": depth / average, "average_encoder_layer": average}
