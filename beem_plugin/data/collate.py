"""Instances to one padded batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from beem_plugin.data.instance import Instance
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
    longest = max(len(instance) for instance in instances)
    batch: dict[str, Tensor] = {}
    for name in instances[0].encoding:
        value = pad_token_id if name == "input_ids" else 0
        padded = torch.full((len(instances), longest), value, dtype=torch.int64)
        for row, instance in enumerate(instances):
            padded[row, : len(instance)] = torch.tensor(instance.encoding[name], dtype=torch.int64)
        batch[name] = padded
    batch["label"] = torch.tensor(
        [label_value(instance, vocab) for instance in instances],
        dtype=torch.float32 if vocab.is_regression else torch.int64,
    )
    batch["index"] = torch.tensor(range(len(instances)) if indices is None else indices, dtype=torch.int64)
    return batch


def label_value(instance: Instance, vocab: Vocabulary) -> float:
    """The label's index, or its value for regression; -1 or NaN where it is unknown."""
    if vocab.is_regression:
        return float("nan") if instance.label is None else float(instance.label)
    return -1 if instance.label is None else vocab.label_index(str(instance.label))


class LabelledTexts:
    """
    `collate` with its fixed arguments: the collator of readers of labelled texts. A class, so that workers that are
    spawned can unpickle it.
    """

    def __init__(self, vocab: Vocabulary, pad_token_id: int) -> None:
        self._vocab = vocab
        self._pad_token_id = pad_token_id

    def __call__(self, instances: Sequence[Instance], indices: Sequence[int]) -> dict[str, Tensor]:
        return collate(instances, self._vocab, self._pad_token_id, indices)
