"""The base class of everything that reads a data set."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, DataError, check_at_least, nearest_first
from beem_plugin.common.registry import Registrable
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.collate import Collator, LabelledTexts
from beem_plugin.data.instance import Instance, InstanceTable, token_counts
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.data.slices import PARTS, Slicing, split_source
from beem_plugin.data.table_file import TableFormat, TableRow, read_table
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.data.vocabulary import LabelRules, Vocabulary

logger = logging.getLogger(__name__)

_CHUNK = 4096  # rows that are tokenized together


class DatasetReader(Registrable):
    """
    Subclasses implement `_read`, which yields instances that are not tokenized yet, and set the attributes below. To
    read labels in what is predicted, they implement `_instance`, which makes one from the fields of a JSON line.

    # Parameters

    tokenizer : `TextEncoder`, or `CaptionTokenizer` for captions
    max_instances : `int`, optional (default = `None`)
        Read only the first so many, of a slice the first of the slice.
    slicing : `Slicing`, optional (default = by the following keys)
        How `[holdout]` and its like are cut.
    holdout_fraction : `float`, optional (default = `0.1`)
        The share of a source that is its part `holdout`, stratified by label; what is left is `fit`.
    holdout_max_size : `int`, optional (default = `5000`)
    holdout_seed : `int`, optional (default = `0`)

    # Attributes

    text_fields : `tuple[str, ...]`
        The names of the one or two input columns.
    text_types : `tuple[type, ...]`
        What an input to be predicted may hold in them.
    label_names : `list[str] | None`
        The labels in their fixed order, if the reader knows them; empty for a task without labels.
    metric : `str`
        A key of `beem_plugin.common.metrics.METRICS`.
    is_regression : `bool`
    parts : `tuple[str, ...]`
        The slices that a source may name in brackets.
    table : `TableFormat`
        How its files are written.
    labels : `LabelRules`
    """

    text_fields: tuple[str, ...] = ("text",)
    text_types: tuple[type, ...] = (str,)
    label_names: list[str] | None = None
    metric: str = "accuracy"
    is_regression: bool = False
    parts: tuple[str, ...] = ("fit", "holdout")
    table: TableFormat = TableFormat()

    def __init__(
        self,
        tokenizer: TextEncoder | CaptionTokenizer,
        max_instances: int | None = None,
        slicing: Slicing | None = None,
        holdout_fraction: float = 0.1,
        holdout_max_size: int = 5000,
        holdout_seed: int = 0,
    ) -> None:
        check_at_least(1, max_instances=max_instances)
        self.tokenizer = tokenizer
        self.max_instances = max_instances
        self.slicing = slicing or Slicing(0.0, holdout_fraction, holdout_max_size, holdout_seed)
        self.labels = LabelRules()
        self._kept: dict[tuple[Any, ...], InstanceTable] = {}

    def read(self, source: str) -> Sequence[Instance]:
        """All instances of `source`, optionally with a slice (`train[holdout]`), tokenized in large batches."""
        base, part = split_source(str(source), self.parts)
        if part is None:
            table = InstanceTable(islice(self._read(base), self.max_instances))
        else:
            table = self._part(base, part)[: self.max_instances]
        if not table:
            few = "" if part is None else f", as {base} has few different texts; allowed: more, or a larger share"
            raise DataError(f"{source}: no instances{few}")
        self._encode(table)
        logger.info("read %d instances from %s", len(table), source)
        return table

    def rows(self, source: str, format: str | None = None) -> Iterator[TableRow]:
        """
        The rows of a file, or of standard input (`-`), to be predicted: read as `read` reads them, with or without
        labels; plain text is read too.

        # Parameters

        source : `str`
        format : `str`, optional (default: the reader's, or by the file's name, or by its first line)
        """
        optional = getattr(self, "label_field", None)
        return read_table(source, self.table.given(format), self.text_fields, optional=optional)

    def limit_length(self, max_tokens: int | None, instances: Sequence[Instance] = ()) -> None:
        """Bounds `max_length` by the model's (`None`: no limit), and cuts `instances` that were read before."""
        # A reader of a user's own may have no tokenizer.
        tokenizer = getattr(self, "tokenizer", None)
        if max_tokens is None or not isinstance(tokenizer, TextEncoder):
            return
        tokenizer.limit_length(max_tokens)
        longer = int((token_counts(instances) > max_tokens).sum())
        if longer:
            logger.info("cut %d texts to the model's limit of %d tokens", longer, max_tokens)
            self._encode(instances)

    def text_to_instance(self, **fields: Any) -> Instance:
        """One tokenized instance from the fields of a JSON line; fields that the reader does not know are kept."""
        return self.texts_to_instances([fields])[0]

    def texts_to_instances(self, rows: Sequence[Mapping[str, Any]]) -> list[Instance]:
        """`text_to_instance` for many rows at once, which is faster."""
        instances = self.untokenized(rows)
        self._encode(instances)
        return instances

    def untokenized(self, rows: Sequence[Mapping[str, Any]]) -> list[Instance]:
        """`texts_to_instances` without the tokens, which `encode` makes."""
        return [self._instance(dict(row)) for row in rows]

    def encode(self, instances: Sequence[Instance], position: int = 0) -> RaggedBatch:
        """The tokens of instances that are not tokenized yet; `index` counts from `position`."""
        found = RaggedBatch.join(list(self._encoded_parts(instances)))
        index = torch.arange(position, position + len(found))
        return replace(found, index=index, pad_token_id=self.tokenizer.pad_token_id)

    def collator(self, vocab: Vocabulary, pad_token_id: int) -> Collator:
        """What makes batches of this reader's instances."""
        return LabelledTexts(vocab, pad_token_id)

    def _read(self, source: str) -> Iterable[Instance]:
        raise ConfigurationError(f"dataset_reader: found {type(self).__name__}, which does not define `_read`")

    def _instance(self, fields: dict[str, Any]) -> Instance:
        return Instance(fields=fields, label=None, id=fields.get("id"))

    def _texts(self, instance: Instance) -> tuple[str, ...]:
        return tuple([instance.fields[name] for name in self.text_fields])

    def _encode(self, instances: Sequence[Instance]) -> None:
        if isinstance(instances, InstanceTable):
            instances.set_tokens(self._encoded_parts(instances))
            return
        rows = chain.from_iterable(part.rows() for part in self._encoded_parts(instances))
        for instance, encoding in zip(instances, rows, strict=True):
            instance.encoding = encoding

    def _encoded_parts(self, instances: Sequence[Instance]) -> Iterator[RaggedBatch]:
        for start in range(0, len(instances), _CHUNK):
            yield self._encode_batch(instances[start : start + _CHUNK])

    def _encode_batch(self, instances: Sequence[Instance]) -> RaggedBatch:
        return self.tokenizer.encode_batch([self._texts(instance) for instance in instances])

    def _part(self, base: str, part: str) -> InstanceTable:
        """One part of a source. Smaller parts are kept until they are read, such as `[holdout]` after `[fit]`."""
        state = base, _modification(base)
        kept = self._kept.pop((*state, part), None)
        if kept is not None:
            return kept
        table = InstanceTable(self._read(base))
        # Sequences of tags are too many to be strata.
        labels = [None if isinstance(label, tuple) else label for label in table.labels]
        assigned = self.slicing.assign(map(self._texts, table), labels)
        found = {
            name: table.select([row for row, own in enumerate(assigned) if own in PARTS[name]])
            for name in self.parts
            if name == part or not set(PARTS[name]) & set(PARTS[part])
        }
        self._kept = {}
        if state[1] is not None:
            self._kept = {(*state, name): rest for name, rest in found.items() if len(rest) < len(found[part])}
        return found[part]


def _modification(source: str) -> tuple[int, int] | None:
    """When a file was written and its size; `None` for a source that is no file."""
    if not Path(source).is_file():
        return None
    status = Path(source).stat()
    return status.st_mtime_ns, status.st_size


def missing_column(fields: Mapping[str, Any], name: object, place: str, what: str = "column", use: str = "") -> str:
    """The message for a row without a column."""
    return f"{place}: no {what} {name!r}{use}; found: {', '.join(nearest_first(name, fields)) or 'none'}"


def text_value(fields: Mapping[str, Any], name: str, place: str) -> str:
    """The text in column `name`, or an error that says what is there instead."""
    if name not in fields:
        raise DataError(missing_column(fields, name, place))
    if not isinstance(fields[name], str):
        raise DataError(f"{place}: column {name!r} holds {type(fields[name]).__name__}, a text is expected")
    try:
        fields[name].encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can spell half a surrogate pair, which no encoding of Unicode can hold.
        raise DataError(f"{place}: column {name!r} holds a lone surrogate at character {error.start}") from None
    return fields[name]
