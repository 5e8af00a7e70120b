"""How the batches of one epoch are shared out among processes and found again after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class EpochPlan:
    """
    One epoch's batches, dealt out in rounds: in round r, process p works on batch `r * processes + p`.

    `batch_size` in a config is per process, as in AllenNLP: two processes with batches of 4 make the steps of one with
    batches of 8. Where the batches do not come out even, a process without one repeats another's, counted as 0 samples,
    so that all processes take part in every synchronization and yet each sample counts exactly once.

    # Parameters

    data_loader : `Any`
        Has `set_epoch(int)` and `torch_loader`, a `torch.utils.data.DataLoader` whose batch sampler's order is a pure
        function of the epoch.
    epoch : `int`
    rank, num_processes : `int`
    """

    def __init__(self, data_loader: Any, epoch: int, rank: int, num_processes: int) -> None:
        data_loader.set_epoch(epoch)
        self._loader: torch.utils.data.DataLoader = data_loader.torch_loader
        if self._loader.batch_sampler is None:
            raise TypeError("the data loader's torch_loader must have a batch sampler")
        self._batches = [list(batch) for batch in self._loader.batch_sampler]
        self.epoch = epoch
        self._rank = rank
        self._num_processes = num_processes

    def __len__(self) -> int:
        """The number of rounds."""
        return -(-len(self._batches) // self._num_processes)

    def samples(self, round_number: int) -> list[int]:
        """How many samples of each process count in this round."""
        first = round_number * self._num_processes
        counts = [len(batch) for batch in self._batches[first : first + self._num_processes]]
        return counts + [0] * (self._num_processes - len(counts))

    def batches(self, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """This process's batches from round `start` on; those before it are not even read."""
        mine = [self._batches[self._index(number)] for number in range(start, len(self))]
        loader = self._loader
        extra: dict[str, Any] = {}
        if loader.num_workers > 0:
            extra = {
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
            }
        return iter(
            torch.utils.data.DataLoader(
                loader.dataset,
                batch_sampler=mine,
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                timeout=loader.timeout,
                # A loader without a generator of its own draws from the global one, and a resumed run would differ.
                generator=torch.Generator().manual_seed(self.epoch),
                **extra,
            )
        )

    def _index(self, round_number: int) -> int:
        first = round_number * self._num_processes
        index = first + self._rank
        return index if index < len(self._batches) else first
