"""Batches of a data set: AllenNLP's `data_loader` block."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader, Dataset

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice
from beem_plugin.common.registry import Registrable
from beem_plugin.data.batch_samplers import BatchSampler, BucketBatchSampler, SimpleBatchSampler
from beem_plugin.data.collate import Collator, LabelledTexts, label_tensor
from beem_plugin.data.epoch_batches import EpochBatches
from beem_plugin.data.instance import Instance, select, token_counts
from beem_plugin.data.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

DEFAULT_SEED = 13370  # AllenNLP's random_seed


class DataLoader(Registrable):
    """
    Iterates over the batches of the current epoch, as the reader's collator makes them. The order is a pure function of
    (seed, epoch): without `set_epoch` every epoch is the same. In evaluation (`training = False`) nothing is shuffled
    and no row is left out. `index` in a batch is the row's position in the data.

    Subclasses choose the batch sampler. The program passes the first three parameters, `training` and, where the config
    has none, `seed`.

    # Parameters

    instances : `Sequence[Instance]`
    vocab : `Vocabulary`
    pad_token_id : `int`
    batch_sampler : `BatchSampler`
    training : `bool`, optional (default = `False`)
    seed : `int`, optional (default = `13370`)
    num_workers : `int`, optional (default = `0`)
        Processes that make batches in the background. Padding texts is cheap, and 0 is mostly fastest; images are
        decoded in these processes.
    batches_per_epoch : `int`, optional (default = `None`)
        Training only: an epoch is this many batches, and the next epoch continues where it ended.
    start_method : `str`, optional (default = `"fork"`)
        How workers are started: `"fork"` or `"spawn"`.
    collator : `Collator`, optional (default = `LabelledTexts`)
        Passed by the program: the dataset reader's.

    # Raises

    `DataError` in the constructor for a label that is not in the vocabulary.
    """

    default_implementation = "bucket"

    def __init__(
        self,
        instances: Sequence[Instance],
        vocab: Vocabulary,
        pad_token_id: int,
        batch_sampler: BatchSampler | None = None,
        training: bool = False,
        seed: int = DEFAULT_SEED,
        num_workers: int = 0,
        batches_per_epoch: int | None = None,
        start_method: str = "fork",
        collator: Collator | None = None,
    ) -> None:
        if not instances:
            raise DataError("data_loader: found no instances")
        if batch_sampler is None:
            raise ConfigurationError("batch_sampler: missing")
        check_choice("start_method", start_method, ("fork", "spawn"))
        if batches_per_epoch is not None and not training:
            logger.warning("batches_per_epoch is for training; evaluation goes over all %d instances", len(instances))
        if "words" not in instances[0].encoding:  # tags are checked when they are read
            label_tensor(instances, vocab)
        self.instances = instances
        self.vocab = vocab
        self.batches = EpochBatches(batch_sampler, token_counts(instances), seed, training, batches_per_epoch)
        self._options: dict[str, Any] = {
            "dataset": _Batches(instances, collator or LabelledTexts(vocab, pad_token_id), self.batches.drop_last),
            "collate_fn": _unchanged,
            "num_workers": num_workers,
            "multiprocessing_context": start_method if num_workers else None,
            # A generator of its own: by default every iteration draws a number from torch's global one, and dropout
            # would differ between a run that was resumed and one that was not.
            "generator": torch.Generator().manual_seed(seed),
        }
        self.torch_loader = TorchDataLoader(batch_sampler=self.batches, **self._options)

    def subset(self, rows: Sequence[int]) -> DataLoader:
        """Some of the rows in batches of the same size; `index` in a batch stays the position among all rows."""
        subset = copy.copy(self)
        subset.instances, subset.batches = select(self.instances, rows), self.batches.subset(rows)
        subset.torch_loader = TorchDataLoader(batch_sampler=subset.batches, **self._options)
        return subset

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches in the current epoch."""
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.torch_loader)


@DataLoader.register("simple")
@DataLoader.register("multiprocess")
class MultiProcessDataLoader(DataLoader):
    """
    AllenNLP's loader, for its configs. Registered as a `DataLoader` with names "multiprocess" and "simple".

    # Parameters

    batch_size : `int`, optional (default = `None`)
        Either this, or `batch_sampler`.
    drop_last, shuffle : `bool`, optional (default = `False`)
        Training only, and only with `batch_size`.
    batch_sampler : `BatchSampler`, optional (default = `None`)
        `bucket`, `max_tokens_sampler` or `simple`.
    max_instances_in_memory, cuda_device : `int`, optional (default = `None`)
        Ignored with a warning: data sets are held in memory, and the trainer moves the batches.
    quiet : `bool`, optional (default = `False`)
        Ignored: the loader prints nothing.
    batches_per_epoch, num_workers, start_method, seed
        See `DataLoader`.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        drop_last: bool = False,
        shuffle: bool = False,
        batch_sampler: BatchSampler | None = None,
        max_instances_in_memory: int | None = None,
        cuda_device: int | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        if (batch_size is None) == (batch_sampler is None):
            raise ConfigurationError("batch_size: exactly one of batch_size and batch_sampler must be given")
        if batch_sampler is not None and (drop_last or shuffle):
            raise ConfigurationError("shuffle: drop_last and shuffle belong into batch_sampler when there is one")
        for key, value in (("max_instances_in_memory", max_instances_in_memory), ("cuda_device", cuda_device)):
            if value is not None:
                logger.warning("data_loader.%s has no effect", key)
        if batch_size is not None:
            batch_sampler = SimpleBatchSampler(batch_size, shuffle, drop_last)
        super().__init__(batch_sampler=batch_sampler, **options)


@DataLoader.register("bucket")
class BucketDataLoader(DataLoader):
    """
    Rows of similar length together. Registered as a `DataLoader` with name "bucket", the default.

    # Parameters

    batch_size : `int`, optional (default = `32`)
    shuffle, drop_last, padding_noise
        See `BucketBatchSampler`.
    batches_per_epoch, num_workers, start_method, seed
        See `DataLoader`.
    """

    def __init__(
        self,
        batch_size: int = 32,
        shuffle: bool = True,
        drop_last: bool = False,
        padding_noise: float = 0.1,
        **options: Any,
    ) -> None:
        if options.get("batch_sampler") is not None:
            raise ConfigurationError("batch_sampler: allowed with type multiprocess")
        options["batch_sampler"] = BucketBatchSampler(batch_size, shuffle, drop_last, padding_noise)
        super().__init__(**options)


@dataclass
class _Batches(Dataset):
    """Batches by the positions of their rows."""

    instances: Sequence[Instance]
    collator: Collator
    drops_rows: bool

    def __len__(self) -> int:
        return len(self.instances)

    def __getitems__(self, rows: list[int]) -> dict[str, Tensor]:
        return self.collator(select(self.instances, rows), rows)

    @property
    def total_dataset_length(self) -> int:
        """
        accelerate's `gather_for_metrics` takes from this how many rows of the last batch are repeats: none with
        `drop_last`, which 0 says, as it cannot see that a custom batch sampler drops rows.
        """
        return 0 if self.drops_rows else len(self.instances)


def _unchanged(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch
