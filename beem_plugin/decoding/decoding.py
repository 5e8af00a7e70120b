"""Decodes captions of images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_at_least
from beem_plugin.common.registry import FromParams
from beem_plugin.decoding.cache import DecoderCache
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.image_exit import EncodedImages, ImageExit, image_macs
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.mixed_depths.compiled_captions import CompiledCaptions
from beem_plugin.decoding.search import beam_search, greedy
from beem_plugin.decoding.skipped_blocks import Propagate, SkippedBlocks
from beem_plugin.decoding.stepper import Stepper
from beem_plugin.exits.policy import ExitPolicy, check_signals


@dataclass
class Decoded:
    """
    The captions of a batch, one for each image, in their order, and the multiply-accumulates of decoding them.
    `patches` are those of an image; `full_image_macs` the image encoder's cost without early exits; `image_blocks` the
    number of its `num_image_blocks` blocks that each image went through, `None` without an `image_exit`.
    """

    captions: list[GeneratedCaption]
    macs: CaptionMacs
    patches: int = 0
    beams: int = 1
    full_image_macs: float = 0.0
    image_blocks: list[int] | None = None
    num_image_blocks: int = 0


@dataclass(eq=False)
class CaptionDecoding(FromParams):
    """
    How captions are decoded.

    # Parameters

    num_beams : `int`, optional (default = `1`)
        1 is greedy decoding.
    max_length : `int`, optional (default = `20`)
        Maximum number of new tokens, including EOS and excluding BOS (transformers' `max_new_tokens`).
    length_penalty : `float`, optional (default = `1.0`)
        For beams: captions are ranked by their log-probability over their length to this power.
    early_stopping : `bool`, optional (default = `False`)
        For beams: whether an image is finished as soon as it has as many finished captions as beams.
    skipped_blocks : `SkippedBlocks`, optional (default = `"propagate"`)
        How keys and values of skipped blocks are computed for later tokens.
    image_exit : `ImageExit`, optional (default = `None`)
        Early exits of images from the image encoder, under any policy but `"final"`, which is full depth. None computes
        all blocks for all images.
    capture : `bool`, optional (default = `True`)
        Whether greedy decoding on a GPU is compiled: the second batch of the same policy and shape is captured as CUDA
        graphs in which every launch computes one block of each caption (see `mixed_depths`), for any number of
        captions, with exits and at full depth. Not compiled: beams; autocast; heads other than `"tied"` and `"untied"`;
        branches; a `shortlist`; policies that read the probabilities of all tokens, or values on the host; and networks
        with hooks. Compiled decoders are stored in this object and dropped when the model is trained.
    """

    num_beams: int = 1
    max_length: int = 20
    length_penalty: float = 1.0
    early_stopping: bool = False
    skipped_blocks: SkippedBlocks | None = None
    image_exit: ImageExit | None = None
    capture: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, **{"decoding.num_beams": self.num_beams, "decoding.max_length": self.max_length})
        self.skipped_blocks = self.skipped_blocks or Propagate()
        self.compiled = CompiledCaptions()

    def check_network(self, network: Any, where: str = "") -> None:
        """Raises a `ConfigurationError` if `network` cannot decode so many tokens or beams; keys start with `where`."""
        check_search(network, self.max_length, self.num_beams, where)

    @torch.inference_mode()
    def run(
        self,
        network: Any,
        policy: ExitPolicy,
        batch: Mapping[str, Tensor],
        bos: int,
        eos: int,
        max_length: int | None = None,
        num_beams: int | None = None,
    ) -> Decoded:
        """
        # Parameters

        network : `MultiExitDecoder`
            In evaluation mode.
        policy : `ExitPolicy`
        batch : `Mapping[str, Tensor]`
            `pixel_values` `(images, channels, height, width)` on the network's device; or `image_states`, already
            encoded.
        bos, eos : `int`
            The tokens that start and end a caption.
        max_length, num_beams : `int`, optional (default = the object's own)
        """
        policy.bind(network.exit_layers, network.num_labels)
        check_signals(policy, network.available_signals, "the model")
        policy.check_calibrated()
        length = self.max_length if max_length is None else max_length
        beams = self.num_beams if num_beams is None else num_beams
        check_at_least(1, num_beams=beams, max_length=length)
        check_search(network, length, beams)
        decoded = Decoded([], CaptionMacs(), beams=beams)
        states = batch.get("image_states")
        if states is None:
            pixels = batch.get("pixel_values")
            if pixels is None:
                raise ConfigurationError("captions need images: the batch has no pixel_values")
            if not len(pixels):
                return decoded
            decoded.full_image_macs = len(pixels) * image_macs(network.backbone, tuple(pixels.shape[1:]))
            found = self.encode(network.backbone, policy, pixels)
            states, decoded.macs.images = found.states, decoded.full_image_macs if found.macs is None else found.macs
            decoded.image_blocks, decoded.num_image_blocks = found.blocks, found.num_blocks
        decoded.patches, skipped_blocks = states.shape[1], self.skipped_blocks
        assert skipped_blocks is not None, "replaced after the start"
        if beams == 1 and self.capture:
            captions = self.compiled.decode(network, policy, skipped_blocks, states, decoded.macs, bos, eos, length)
            if captions is not None:
                decoded.captions = captions
                return decoded
        cache = DecoderCache(network.backbone.decoder, states, beams, length, network.attending_branches)
        stepper = Stepper(network, policy, cache, skipped_blocks, decoded.macs)
        if beams == 1:
            decoded.captions = greedy(stepper, bos, eos, length)
        else:
            decoded.captions = beam_search(stepper, bos, eos, length, self.length_penalty, self.early_stopping)
        return decoded

    def encode(self, backbone: Any, policy: ExitPolicy, pixel_values: Tensor) -> EncodedImages:
        """Images exit the image encoder early if there is an `image_exit`, and `policy` is not full depth."""
        if self.image_exit is None or not policy.leaves_early:
            return EncodedImages(backbone.encode_images(pixel_values))
        return self.image_exit.encode(backbone, pixel_values)


def check_search(network: Any, max_length: int, num_beams: int, where: str = "") -> None:
    """Raises a `ConfigurationError` if `network` has too small a vocabulary or too few positions."""
    vocabulary, positions = network.num_labels, network.backbone.decoder.max_positions
    # Beam search ranks two continuations a beam.
    if 2 * num_beams > vocabulary:
        raise ConfigurationError(
            f"{where}num_beams: found {num_beams}, allowed: 1 to {vocabulary // 2}, half the vocabulary"
        )
    if max_length > positions:
        raise ConfigurationError(
            f"{where}max_length: found {max_length}, allowed: 1 to {positions}, the decoder's positions"
        )
