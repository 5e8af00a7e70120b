"""The inputs of a batch on their way to the device: token ids, what goes with them and the lengths, in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.execution.recorder import Recorder

MADE_UP = 5
"""A token that every vocabulary has."""


class BatchStaging:
    """
    # Parameters

    fields : `tuple[str, ...]`
        The inputs beside the attention mask.
    capacity, length : `int`
        Most rows of a batch, and their tokens, padding included.
    pad_token_id : `int`
    device : `torch.device`
    recorder : `Recorder`
    """

    def __init__(
        self,
        fields: tuple[str, ...],
        capacity: int,
        length: int,
        pad_token_id: int,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self.fields, self.length = fields, length
        self.fills = [pad_token_id if name == "input_ids" else 0 for name in fields]
        size = self._size(capacity)
        self.pinned = recorder.pinned(size, dtype=torch.int64)
        self.here = self.pinned.numpy()
        self.there = torch.zeros(size, dtype=torch.int64, device=device)

    def load(self, batch: dict[str, Tensor], lengths: np.ndarray, count: int) -> None:
        """
        Puts a batch where `fetch` reads it, which must not be under way. Rows that hold no sample get one token, of
        padding.

        # Parameters

        batch : `dict[str, Tensor]`
            On the CPU, padded on the right.
        lengths : `np.ndarray`
            `(batch,)` int64
        count : `int`
            Rows.
        """
        samples, tokens = batch["input_ids"].shape
        parts, row_lengths = self._parts(self.here, count)
        for part, name, fill in zip(parts, self.fields, self.fills, strict=True):
            part[:samples, :tokens] = batch[name].numpy()
            part[:samples, tokens:] = fill
            part[samples:] = fill
        row_lengths[:samples] = lengths
        row_lengths[samples:] = 1

    def make_up(self, count: int) -> None:
        """As `load`, with so many samples of no meaning."""
        parts, row_lengths = self._parts(self.here, count)
        parts[:] = 0
        parts[self.fields.index("input_ids")] = MADE_UP
        row_lengths[:] = -(-self.length // 2)

    def fetch(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """Queues the copy; the fields on the device, each `(count, length)`, and the lengths `(count,)`."""
        size = self._size(count)
        self.there[:size].copy_(self.pinned[:size], non_blocking=True)
        parts, lengths = self._parts(self.there, count)
        return dict(zip(self.fields, parts, strict=True)), lengths

    def _size(self, count: int) -> int:
        return len(self.fields) * count * self.length + count

    def _parts(self, staged: Any, count: int) -> tuple[Any, Any]:
        """Fields, `(fields, count, length)`, and lengths, `(count,)`, in an array or a tensor."""
        size = self._size(count)
        return staged[: size - count].reshape(len(self.fields), count, self.length), staged[size - count : size]
