"""Instances to one padded batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from beem_plugin.data.instance import Instance
from beem_plugin.data.instance_table import InstanceTable
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.data.vocabulary import Vocabulary

Collator = Callable[[Sequence[Instance], Sequence[int]], dict[str, Tensor]]
"""From instances and their positions in the data set to one batch."""


def collate(
    instances: Sequence[Instance], vocab: Vocabulary, pad_token_id: int, indices: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """
    Padded on the right, to the longest of the batch.

    # Parameters

    instances : `Sequence[Instance]`
    vocab : `Vocabulary`
    pad_token_id : `int`
    indices : `Sequence[int]`, optional (default = 0, 1, 2, ...)
        The positions of the instances in their data set.

    # Returns

    `input_ids`, `attention_mask` and, if the tokenizer makes them, `token_type_ids`: int64 `(batch, tokens)`;
    `label`: int64 `(batch,)`, -1 where unknown; for regression float32, NaN where unknown;
    `index`: int64 `(batch,)`.
    """
    batch = ragged(instances, pad_token_id).padded(always_mask=True)
    batch["attention_mask"] = batch["attention_mask"].to(torch.int64)
    batch["label"] = label_tensor(instances, vocab)
    batch["index"] = torch.arange(len(instances)) if indices is None else torch.tensor(indices, dtype=torch.int64)
    return batch


def ragged(instances: Sequence[Instance], pad_token_id: int, position: int = 0) -> RaggedBatch:
    """The tokens of `instances` as engines take them; `index` counts from `position`."""
    if isinstance(instances, InstanceTable):
        return instances.ragged(pad_token_id, position)
    encodings = [instance.encoding for instance in instances]
    types = [encoding["token_type_ids"] for encoding in encodings] if "token_type_ids" in encodings[0] else None
    return RaggedBatch.from_lists(
        [encoding["input_ids"] for encoding in encodings], types, pad_token_id=pad_token_id, position=position
    )


def ragged_parts(instances: Sequence[Instance], pad_token_id: int, size: int) -> Iterator[RaggedBatch]:
    """The tokens of all instances in batches of `size` for an engine; `index` is the position in `instances`."""
    for start in range(0, len(instances), size):
        yield ragged(instances[start : start + size], pad_token_id, start)


def label_tensor(instances: Sequence[Instance], vocab: Vocabulary) -> Tensor:
    """`(rows,)` int64, the index of each label, -1 where unknown; for regression float32, NaN where unknown."""
    kind = np.float32 if vocab.is_regression else np.int64
    if isinstance(instances, InstanceTable):
        values = np.zeros(len(instances.label_values), dtype=kind)
        for code in np.unique(instances.label_codes):
            values[code] = label_value(instances.label_values[code], vocab)
        return torch.from_numpy(values[instances.label_codes])
    return torch.from_numpy(np.array([label_value(instance.label, vocab) for instance in instances], dtype=kind))


def label_value(label: str | float | None, vocab: Vocabulary) -> float:
    """A label's index, or its value for regression; -1 or NaN for `None`."""
    if vocab.is_regression:
        return float("nan") if label is None else float(label)
    return -1 if label is None else vocab.label_index(str(label))


class LabelledTexts:
    """
    `collate` with its fixed arguments: the collator of readers of labelled texts. A class, so that spawned workers can
    unpickle it.
    """

    def __init__(self, vocab: Vocabulary, pad_token_id: int) -> None:
        self._vocab = vocab
        self._pad_token_id = pad_token_id

    def __call__(self, instances: Sequence[Instance], indices: Sequence[int]) -> dict[str, Tensor]:
        return collate(instances, self._vocab, self._pad_token_id, indices)
