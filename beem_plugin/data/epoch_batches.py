"""The batches of one epoch, as torch's DataLoader and accelerate want them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.batch_samplers import Batches, BatchSampler


class EpochBatches:
    """
    A batch sampler for torch's `DataLoader` whose batches are a pure function of (seed, epoch), so that a resumed
    training gets the same rows. In evaluation nothing is shuffled or left out. With `batches_per_epoch` an epoch
    continues where the last one ended.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        lengths: np.ndarray,
        seed: int,
        training: bool,
        batches_per_epoch: int | None = None,
    ) -> None:
        self._sampler = sampler
        self._lengths = lengths
        self._seed = seed
        self._shuffle = training and sampler.shuffle
        self._batches_per_epoch = batches_per_epoch if training else None
        self._epoch = 0
        self._rows: np.ndarray | None = None
        self._cached: tuple[int, Batches] | None = None
        # accelerate looks at the following two, and at `sampler`.
        self.batch_size = sampler.batch_size
        # Goes on over several passes: with a short batch in the middle the processes would get out of step.
        self.drop_last = training and (sampler.drop_last or self._batches_per_epoch is not None)
        if self._batches_per_epoch is not None and (self.batch_size is None or self._batches_per_epoch < 1):
            raise ConfigurationError("batches_per_epoch: allowed: 1 or more, and a fixed batch_size")
        self._check_any()

    @property
    def sampler(self) -> EpochBatches:
        """Several processes: accelerate hands the epoch on only to `.batch_sampler.sampler` of what it wraps."""
        return self

    def subset(self, rows: Sequence[int]) -> EpochBatches:
        """Batches of the same kind over some of the rows, which keep their numbers."""
        subset = copy.copy(self)
        subset._lengths = self._lengths[rows]
        subset._rows = np.asarray(rows if self._rows is None else self._rows[rows])
        subset._cached = None
        subset._check_any()
        return subset

    def _check_any(self) -> None:
        if not len(self):
            rows = len(self._lengths)
            raise ConfigurationError(f"drop_last: leaves nothing of {rows} rows with batch_size {self.batch_size}")

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        # Copies: accelerate fills up the last batch in place.
        return iter([list(batch) for batch in self._batches()])

    def _batches(self) -> Batches:
        key = self._epoch if self._shuffle or self._batches_per_epoch else 0
        if self._cached is None or self._cached[0] != key:
            drawn = self._drawn(key)
            if self._rows is not None:
                drawn = [self._rows[batch].tolist() for batch in drawn]
            self._cached = (key, drawn)
        return self._cached[1]

    def _drawn(self, epoch: int) -> Batches:
        if self._batches_per_epoch is None:
            return self._pass(epoch)
        in_a_pass = len(self._lengths) // (self.batch_size or 1)
        if not in_a_pass:
            return []
        start = epoch * self._batches_per_epoch
        first, last = start // in_a_pass, (start + self._batches_per_epoch - 1) // in_a_pass
        batches = [batch for number in range(first, last + 1) for batch in self._pass(number)]
        offset = start - first * in_a_pass
        return batches[offset : offset + self._batches_per_epoch]

    def _pass(self, number: int) -> Batches:
        random = np.random.default_rng([self._seed, number]) if self._shuffle else None
        return self._sampler.batches(self._lengths, random, self.drop_last)
