"""A command in several processes of a launcher (torchrun, accelerate launch), each with a share of the data."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")

_LONGEST_WAIT = timedelta(days=30)
"""A process that ends closes its connections, which the others see at once; a slow one is waited for."""

_joined = False


def launched_rank() -> int:
    """The number of this process, 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def launched_processes() -> int:
    """The number of processes, 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined() -> Iterator[None]:
    """In it, `share` and `gathered` are between the processes of the launcher; without a launcher it does nothing."""
    global _joined
    if launched_processes() == 1:
        yield
        return
    import torch.distributed as distributed

    distributed.init_process_group("gloo", timeout=_LONGEST_WAIT)
    _joined = True
    try:
        yield
        distributed.barrier()
    finally:
        _joined = False
        distributed.destroy_process_group()


def processes() -> int:
    """How many processes share the data."""
    return launched_processes() if _joined else 1


def is_main() -> bool:
    """Whether this process prints and writes."""
    return not _joined or launched_rank() == 0


def device_of(cuda_device: int) -> int:
    """The GPU of this process: the given one, or in place of it the launcher's; -1 is the CPU."""
    return int(os.environ.get("LOCAL_RANK", cuda_device)) if _joined and cuda_device >= 0 else cuda_device


def share(items: Iterable[Item]) -> Iterator[Item]:
    """This process's items: of n processes every n-th."""
    return islice(items, launched_rank() if _joined else 0, None, processes())


def gathered(items: Sequence[Item]) -> list[Item]:
    """The items of all processes, one process's after another's; all must call it, with tensors on the CPU."""
    if not _joined:
        return list(items)
    import torch.distributed as distributed

    parts: list[list[Item]] = [[] for _ in range(processes())]
    distributed.all_gather_object(parts, list(items))
    return list(chain.from_iterable(parts))
