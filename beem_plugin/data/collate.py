"""Instances to one padded batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.data.instance import Instance, InstanceTable, labels_of
from beem_plugin.data.ragged_batch import TOKEN_FIELDS, RaggedBatch
from beem_plugin.data.vocabulary import Vocabulary

Collator = Callable[[Sequence[Instance], Sequence[int]], dict[str, Tensor]]
"""From instances and their positions in the data set to one batch."""


def collate(
    instances: Sequence[Instance], vocab: Vocabulary, pad_token_id: int, indices: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """
    A batch padded on the right, to its longest sample: `input_ids`, `attention_mask` and, if the tokenizer makes them,
    `token_type_ids`, int64 `(batch, tokens)`; `label`, int64 `(batch,)`, -1 where unknown, for regression float32, NaN
    where unknown, of tagged words int64 `(batch, tokens)`, see `tag_tensor`; `words`, 1 at each word's first token; and
    `index`, int64 `(batch,)`, the positions in the data set, by default 0, 1, 2, ...
    """
    batch = ragged(instances, pad_token_id).padded(always_mask=True)
    batch["attention_mask"] = batch["attention_mask"].to(torch.int64)
    make_labels = tag_tensor if "words" in batch else label_tensor
    batch["label"] = make_labels(instances, vocab)
    batch["index"] = torch.arange(len(instances)) if indices is None else torch.tensor(indices, dtype=torch.int64)
    return batch


def ragged(instances: Sequence[Instance], pad_token_id: int, position: int = 0) -> RaggedBatch:
    """The tokens of `instances` as engines take them; `index` counts from `position`."""
    if isinstance(instances, InstanceTable):
        return instances.ragged(pad_token_id, position)
    names = [name for name in TOKEN_FIELDS if name in instances[0].encoding]
    columns = {name: [instance.encoding[name] for instance in instances] for name in names}
    return RaggedBatch.from_columns(columns, pad_token_id, position)


def ragged_parts(instances: Sequence[Instance], pad_token_id: int, size: int) -> Iterator[RaggedBatch]:
    """The tokens of all instances in batches of `size` for an engine; `index` is the position in `instances`."""
    for start in range(0, len(instances), size):
        yield ragged(instances[start : start + size], pad_token_id, start)


def label_tensor(instances: Sequence[Instance], vocab: Vocabulary) -> Tensor:
    """`(rows,)` int64, the index of each label, -1 where unknown; for regression float32, NaN where unknown."""
    kind = np.float32 if vocab.is_regression else np.int64
    labels = labels_of(instances)
    values = {label: label_value(label, vocab) for label in set(labels)}
    return torch.from_numpy(np.array([values[label] for label in labels], dtype=kind))


def tag_tensor(instances: Sequence[Instance], vocab: Vocabulary) -> Tensor:
    """`(rows, tokens)` int64: the tag of each word at its first token; -1 elsewhere and where it is unknown."""
    encodings = [instance.encoding for instance in instances]
    labels = torch.full((len(encodings), max(len(encoding["words"]) for encoding in encodings)), -1)
    for row, (encoding, instance) in enumerate(zip(encodings, instances, strict=True)):
        if instance.label is not None:
            firsts = torch.tensor(encoding["words"]).nonzero().squeeze(1)
            tags = list(instance.label)[: len(firsts)]  # type: ignore[arg-type]  # a tuple of tags
            labels[row, firsts] = torch.tensor([vocab.label_index(tag) for tag in tags])
    return labels


def label_value(label: str | float | None, vocab: Vocabulary) -> float:
    """A label's index, or its value for regression; -1 or NaN for `None`."""
    if vocab.is_regression:
        return float("nan") if label is None else float(label)
    return -1 if label is None else vocab.label_index(str(label))


@dataclass
class LabelledTexts:
    """`collate` with its fixed arguments: the collator of readers of labelled texts, which spawned workers unpickle."""

    vocab: Vocabulary
    pad_token_id: int

    def __call__(self, instances: Sequence[Instance], indices: Sequence[int]) -> dict[str, Tensor]:
        return collate(instances, self.vocab, self.pad_token_id, indices)
