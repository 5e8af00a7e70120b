"""Engines' inputs from lists of token ids, and from padded batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from beem_plugin.data.ragged_batch import TOKEN_FIELDS, RaggedBatch


def ragged_of(input_ids: Sequence[Sequence[int]], pad_token_id: int = 0, position: int = 0) -> RaggedBatch:
    return RaggedBatch.from_columns({"input_ids": input_ids}, pad_token_id, position)


def ragged_batches(batches: Iterable[Mapping[str, Tensor]], pad_token_id: int = 0) -> Iterator[RaggedBatch]:
    """Batches that are padded on the right, or not; those without an `index` are numbered as they come."""
    position = 0
    for batch in batches:
        size, longest = batch["input_ids"].shape
        index = batch["index"] if "index" in batch else torch.arange(position, position + size)
        mask = batch["attention_mask"] != 0 if "attention_mask" in batch else torch.ones(size, longest).bool()
        lengths = mask.sum(1)
        tokens = {name: batch[name][mask] for name in TOKEN_FIELDS if name in batch}
        yield RaggedBatch(tokens, lengths.cumsum(0) - lengths, lengths, index, pad_token_id)
        position += size
