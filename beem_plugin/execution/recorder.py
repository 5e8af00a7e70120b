"""The names that `decoding` imports until it uses `execution.compiled.capture`."""

from __future__ import annotations

from beem_plugin.execution.compiled.capture import CudaRecorder, Recorder

__all__ = ["CudaRecorder", "Recorder"]
