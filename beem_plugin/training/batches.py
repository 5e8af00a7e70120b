"""The batches of an epoch: their order, and their distribution over processes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class EpochPlan:
    """
    One epoch's batches in rounds: in round r, process p has batch `r * processes + p`. A process without a batch in the
    last round repeats the round's first, counted as 0 samples, so that all processes synchronize equally often.

    `data_loader` has `set_epoch(int)` and `torch_loader`, whose batch sampler's order is a pure function of the epoch.
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
        """The number of samples of each process that count in this round."""
        first = round_number * self._num_processes
        counts = [len(batch) for batch in self._batches[first : first + self._num_processes]]
        return counts + [0] * (self._num_processes - len(counts))

    def batches(self, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """This process's batches from round `start` on; earlier ones are not read."""
        firsts = range(start * self._num_processes, len(self._batches), self._num_processes)
        rounds = (self._batches[first : first + self._num_processes] for first in firsts)
        mine = [batches[self._rank] if self._rank < len(batches) else batches[0] for batches in rounds]
        loader = self._loader
        extra: dict[str, Any] = {}
        if loader.num_workers > 0:
            extra = {name: getattr(loader, name) for name in ("multiprocessing_context", "prefetch_factor")}
        return iter(
            torch.utils.data.DataLoader(
                loader.dataset,
                batch_sampler=mine,
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                timeout=loader.timeout,
                # Without its own generator a loader draws from the global one, and a recovered run would differ.
                generator=torch.Generator().manual_seed(self.epoch),
                **extra,
            )
        )
