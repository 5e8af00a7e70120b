"""Cache of the compiled decoders of a network."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import first_line
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.mixed_depths.linear import allows_tf32
from beem_plugin.decoding.mixed_depths.mixed_greedy import MixedGreedy
from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.decoding.mixed_depths.weights import DecoderWeights
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.execution.compiled.capture import CudaRecorder, EagerRecorder
from beem_plugin.execution.compiled.origin import Origin, policy_state
from beem_plugin.execution.compiled.step_trace import UnsupportedStep
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.kernels.launch import triton

logger = logging.getLogger(__name__)

CAPTURE_AFTER = 2
"""Settings are compiled the second time they occur: for a single batch compilation takes longer than decoding."""
MAX_DECODERS = 32
"""Maximum number of compiled decoders; the least recently used one is dropped first."""
ANY_POLICY = ExitPolicy()
"""Stands for any policy in the origin of the buffers, which depend on the network only."""
MAX_ROWS = 512
MAX_BYTES = 2**31
"""Size of the buffers; batches that need more are decoded on the plain path."""


class CompiledCaptions:
    """
    Compiled decoders of the network that was decoded last, by policy and settings. A copy is empty, because compiled
    decoders belong to one network. For tests: without `use_kernels` slow reference functions in torch are used, on any
    device; decoding is compiled on devices of `device_type` only.
    """

    def __init__(self, use_kernels: bool = True, device_type: str = "cuda") -> None:
        self.use_kernels, self.device_type = use_kernels, device_type
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledCaptions, (self.use_kernels, self.device_type)

    def clear(self) -> None:
        """Drops everything that was compiled, with its memory."""
        self.origin: Origin | None = None
        self.settings: tuple[Any, ...] = ()
        self.occurred: Counter[tuple[Any, ...]] = Counter()
        self.refused: dict[tuple[Any, ...], str] = {}
        self._drop_decoders()

    def _drop_decoders(self) -> None:
        self.decoders: OrderedDict[tuple[Any, ...], MixedGreedy] = OrderedDict()
        self.state: DecodingState | None = None
        self.recorder: CudaRecorder | EagerRecorder = EagerRecorder()

    def decode(
        self,
        network: Any,
        policy: ExitPolicy,
        skipped_blocks: SkippedBlocks,
        image_states: Tensor,
        macs: CaptionMacs,
        bos: int,
        eos: int,
        max_length: int,
    ) -> list[GeneratedCaption] | None:
        """One caption for each image, or `None` for the plain path; `policy` is bound and calibrated."""
        device, (images, patches) = image_states.device, image_states.shape[:2]
        if device.type != self.device_type or torch.is_autocast_enabled(device.type) or not 0 < images <= MAX_ROWS:
            return None
        if (self.use_kernels and triton is None) or not self._is_current(network, device):
            return None
        rows = 1 << (images - 1).bit_length()
        fills = (type(skipped_blocks), str(vars(skipped_blocks)))
        key = (type(policy), policy_state(policy), fills, eos, max_length, patches, image_states.dtype, rows)
        self.occurred[key] += 1
        if key in self.refused or self.occurred[key] < CAPTURE_AFTER:
            return None
        counted = CaptionMacs()
        try:
            with self._stream(device):
                if key not in self.decoders:
                    state = self._state_for(network, image_states, rows, max_length)
                    self.decoders[key] = MixedGreedy(network, policy, skipped_blocks, state, rows, eos, self.recorder)
                self.decoders.move_to_end(key)
                captions = self.decoders[key].decode(image_states, bos, counted)
        except UnsupportedStep as error:
            self.refused[key] = str(error)
            logger.debug("%s is decoded on the plain path: %s", type(policy).__name__, error)
            return None
        except Exception as error:  # torch, Triton and its compiler fail in many ways
            self.refused[key] = reason = first_line(error)
            self._drop_decoders()
            logger.warning("%s: captions are decoded on the plain path from now on: %s", type(policy).__name__, reason)
            return None
        while len(self.decoders) > MAX_DECODERS:
            self.decoders.popitem(last=False)
        macs.add(counted)
        return captions

    def _is_current(self, network: Any, device: torch.device) -> bool:
        """Whether the network can be compiled. Drops what was compiled of it if it has changed since."""
        settings = (device, allows_tf32(), tuple(network.exit_layers), network.shortlist)
        if self.origin is None or settings != self.settings or not self.origin.matches(network, ANY_POLICY):
            self.clear()
            self.origin, self.settings = Origin(network, ANY_POLICY), settings
        # torch counts no writes to inference tensors, so that they would not be noticed.
        uncounted = any(parameter.is_inference() for parameter in network.parameters())
        return not self.origin.is_intercepted and not any(one.training for one in self.origin.modules) and not uncounted

    @contextmanager
    def _stream(self, device: torch.device) -> Iterator[None]:
        """Runs the block on the recorder's stream, after work that is already queued on the current stream."""
        if device.type != "cuda":
            yield
            return
        with torch.cuda.device(device):
            if not isinstance(self.recorder, CudaRecorder):
                self.recorder = CudaRecorder(device)
            stream = self.recorder.main
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                yield

    def _state_for(self, network: Any, image_states: Tensor, rows: int, max_length: int) -> DecodingState:
        """Buffers for `rows` captions. Larger ones than before replace them, and all decoders on them."""
        state, patches = self.state, image_states.shape[1]
        if state is not None and (state.max_tokens, state.patches) == (max_length, patches) and state.capacity >= rows:
            return state
        unsupported = DecoderWeights.unsupported(network, patches > 0)
        if unsupported is not None:
            raise UnsupportedStep(unsupported)
        if network.exit_weight(network.num_exits).dtype != image_states.dtype:
            raise UnsupportedStep(f"image states of {image_states.dtype}")
        needed = DecodingState.num_bytes(network.backbone.decoder, rows, max_length, patches, image_states)
        if needed > MAX_BYTES:
            raise UnsupportedStep(f"buffers of {needed} bytes")
        self.decoders.clear()
        self.state = DecodingState(network, rows, max_length, patches, self.use_kernels)
        return self.state
