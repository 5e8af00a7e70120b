"""From images to captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import FromParams
from beem_plugin.execution.captions.beam import beam_search
from beem_plugin.execution.captions.cache import DecoderCache
from beem_plugin.execution.captions.generated import GeneratedCaption
from beem_plugin.execution.captions.greedy import greedy
from beem_plugin.execution.captions.meter import CaptionMacs, image_macs
from beem_plugin.execution.captions.skipped_blocks import Propagate, SkippedBlocks
from beem_plugin.execution.captions.stepper import CaptionNetwork, Stepper
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import check_signals


@dataclass
class Decoded:
    """
    # Parameters

    captions : `list[GeneratedCaption]`
        One for each image, in their order.
    macs : `CaptionMacs`
        What they cost.
    patches : `int`, optional (default = `0`)
        Parts of an image that the decoder looks at.
    beams : `int`, optional (default = `1`)
    """

    captions: list[GeneratedCaption]
    macs: CaptionMacs
    patches: int = 0
    beams: int = 1


class CaptionDecoding(FromParams):
    """
    How captions are decoded.

    # Parameters

    num_beams : `int`, optional (default = `1`)
        1 is greedy.
    max_length : `int`, optional (default = `20`)
        The most words of a caption, its end included and its start not (transformers' `max_new_tokens`).
    length_penalty : `float`, optional (default = `1.0`)
        For beams: captions are ranked by their log-probability over their length to this power.
    early_stopping : `bool`, optional (default = `False`)
        For beams: whether an image is done as soon as it has as many finished captions as beams.
    skipped_blocks : `SkippedBlocks`, optional (default = `"propagate"`)
        What later words attend to in the blocks that a word skipped.
    """

    def __init__(
        self,
        num_beams: int = 1,
        max_length: int = 20,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        skipped_blocks: SkippedBlocks | None = None,
    ) -> None:
        for key, value in (("num_beams", num_beams), ("max_length", max_length)):
            if value < 1:
                raise ConfigurationError(f"decoding.{key}: found {value}, allowed: 1 or more")
        self.num_beams = num_beams
        self.max_length = max_length
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.skipped_blocks = skipped_blocks if skipped_blocks is not None else Propagate()

    @torch.inference_mode()
    def run(
        self,
        network: CaptionNetwork,
        policy: ExitPolicy,
        batch: Mapping[str, Tensor],
        bos: int,
        eos: int,
        max_length: int | None = None,
        num_beams: int | None = None,
    ) -> Decoded:
        """
        # Parameters

        network : `CaptionNetwork`
            In evaluation mode.
        policy : `ExitPolicy`
        batch : `Mapping[str, Tensor]`
            `pixel_values` `(images, channels, height, width)` on the network's device; or `image_states`, encoded
            before.
        bos, eos : `int`
            The words that start and end a caption.
        max_length, num_beams : `int`, optional (default = the object's own)
        """
        policy.bind(network.exit_layers, network.num_labels)
        check_signals(policy, network.available_signals, "the model")
        policy.check_calibrated()
        length = self.max_length if max_length is None else max_length
        beams = self.num_beams if num_beams is None else num_beams
        if length < 1 or beams < 1:
            raise ConfigurationError(f"max_length {length}, num_beams {beams}: both must be 1 or more")
        if 2 * beams > network.num_labels:
            raise ConfigurationError(f"num_beams: found {beams}, allowed: 1 to {network.num_labels // 2}")
        decoder = network.backbone.decoder
        if length > decoder.max_positions:
            raise ConfigurationError(f"max_length: found {length}, allowed: 1 to {decoder.max_positions}")
        macs = CaptionMacs()
        states = batch.get("image_states")
        if states is None:
            pixels = batch.get("pixel_values")
            if pixels is None:
                raise ConfigurationError("captions need images: the batch has no pixel_values")
            if not len(pixels):
                return Decoded([], macs)
            states = network.image_states(batch)
            macs.images = len(pixels) * image_macs(network, tuple(pixels.shape[1:]))
        assert states is not None, "encoded, or given"
        cache = DecoderCache(decoder, states, beams, length, macs)
        stepper = Stepper(network, policy, cache, self.skipped_blocks)
        patches = states.shape[1]
        if beams == 1:
            return Decoded(greedy(stepper, bos, eos, length), macs, patches)
        captions = beam_search(stepper, bos, eos, length, self.length_penalty, self.early_stopping)
        return Decoded(captions, macs, patches, beams)
