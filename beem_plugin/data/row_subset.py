"""A data loader over some rows of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader

from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.instance_table import select


class RowSubset:
    """
    Some of the rows of a loader in batches of the same size; the order is a pure function of seed and epoch. `index` in
    a batch stays the position among all rows.
    """

    def __init__(self, data_loader: DataLoader, rows: Sequence[int]) -> None:
        loader = data_loader.torch_loader
        self.instances = select(data_loader.instances, rows)
        self.batches = data_loader.batches.subset(rows)
        self.torch_loader: TorchDataLoader = TorchDataLoader(
            loader.dataset,
            batch_sampler=self.batches,  # type: ignore[arg-type]  # any iterable of lists of rows will do
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
        )

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.torch_loader)
