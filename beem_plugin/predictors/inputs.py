"""What is given to be predicted, as rows of texts by the reader's columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from beem_plugin.common.errors import DataError
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.predictors.predictor import JsonDict

RESERVED = {"label", "value", "tags", "probabilities", "exit", "layer", "score"}

Text = str | tuple[str, str] | Mapping[str, str]
"""One input: a text, a pair of texts, or texts by the names of the reader's columns."""


def inputs_of(inputs: Iterable[Any], names: Sequence[str]) -> Iterable[Any]:
    """The inputs one by one. A frame of pandas or polars, which iterates over its columns' names, gives its rows."""
    if not hasattr(inputs, "columns"):
        return inputs
    found = list(inputs.columns)
    if missing := [name for name in names if name not in found]:
        raise DataError(f"the input lacks {missing}; found {found}")
    return zip(*(inputs[name] for name in names), strict=True)  # type: ignore[index]


def column_rows(columns: Mapping[str, Any], names: Sequence[str], types: tuple[type, ...]) -> Iterable[Any] | None:
    """The inputs of columns of texts, or of lists of words; `None` if they hold a single input."""
    if any(_is_one(columns.get(name), types) for name in names):
        return None
    if missing := [name for name in names if name not in columns]:
        raise DataError(f"the input lacks {missing}; found {sorted(columns)}")
    found = {name: list(columns[name]) for name in names}
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"found columns of different lengths: {lengths}, allowed: of the same")
    return zip(*found.values(), strict=True)


def _is_one(value: Any, types: tuple[type, ...]) -> bool:
    is_words = list in types and isinstance(value, list) and all(isinstance(word, str) for word in value)
    return isinstance(value, str) or (is_words and bool(value))


def row_of(item: object, names: Sequence[str], types: tuple[type, ...] = (str,)) -> JsonDict:
    """The texts of one input by the reader's columns; a list of words is a text where `types` has lists."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, list) and list in types:
        return {names[0]: item}
    texts = tuple(item) if isinstance(item, list | tuple) else (item,)
    if len(texts) != len(names):
        raise DataError(f"found {len(texts)} text(s) an input, allowed: {len(names)} ({', '.join(names)})")
    return dict(zip(names, texts, strict=True))


def texts_of(record: JsonDict, names: Sequence[str], types: tuple[type, ...] = (str,)) -> JsonDict:
    """The text in each of the reader's columns, or a `DataError`."""
    if not isinstance(record, (dict, Mapping)):  # an abstract class takes longer to ask
        raise DataError(f"found the input {record!r}, allowed: an object with {', '.join(names)}")
    texts = {name: record[name] for name in names if name in record}
    if len(texts) < len(names):
        missing = [name for name in names if name not in record]
        raise DataError(f"the input lacks {missing}; found {sorted(record)}")
    for name, text in texts.items():
        if isinstance(text, str):
            continue
        words: Any = text if isinstance(text, types) else None
        if words is None or not all(isinstance(word, str) and word.strip() for word in words):
            raise DataError(f"{name}: found {text!r}, allowed: a text{' or a list of words' * (list in types)}")
    return texts


def labelled_instances(
    reader: DatasetReader, inputs: Iterable[Any], labels: Iterable[Any] | None = None
) -> list[Instance]:
    """Tokenized inputs (see `row_of`); labels are names, positions among the model's labels, values, or tags."""
    names, types = reader.text_fields, reader.text_types
    rows = [texts_of(row_of(item, names, types), names, types) for item in inputs_of(inputs, names)]
    if not rows:
        raise DataError("texts: found none, allowed: one or more")
    values: list[Any] = [None] * len(rows) if labels is None else list(labels)
    if len(values) != len(rows):
        raise DataError(f"labels: found {len(values)} for {len(rows)} texts, allowed: as many")
    labels_known = reader.labels.known or ()
    instances = list(reader.texts_to_instances(rows))
    for number, (instance, value) in enumerate(zip(instances, values, strict=True)):
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, int) and str(value) not in labels_known and 0 <= value < len(labels_known):
            value = labels_known[value]
        if list in types and value is not None:
            instance.label = tags_of(value, rows[number][names[0]], reader.label_names or (), f"labels[{number}]")
        else:
            instance.label = reader.labels.parse(value, f"labels[{number}]")
    return instances


def tags_of(value: Any, words: str | list[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    """A tag for each word, or a `DataError`."""
    count = len(words.split() if isinstance(words, str) else words)
    if not isinstance(value, list | tuple) or len(value) != count or not all(one in known for one in value):
        raise DataError(f"{what}: found {value!r}, allowed: {count} tags of {', '.join(known)}")
    return tuple(value)


def input_fields(instance: Instance, answer: str = "label") -> JsonDict:
    """The fields of the input, renamed where they would hide a part of the prediction, whose answer is `answer`."""
    fields = instance.fields
    if instance.id is not None and "id" not in fields:
        fields = {"id": instance.id, **fields}
    if instance.label is None and RESERVED.isdisjoint(fields):
        return fields
    fields = dict(fields)
    gold = fields.pop("label", instance.label)
    if gold is not None:
        fields[f"gold_{answer}"] = gold
    for name in (answer, "probabilities", "exit", "layer", "score"):
        if name in fields:
            renamed = f"input_{name}"
            while renamed in fields:
                renamed = f"input_{renamed}"
            fields[renamed] = fields.pop(name)
    return fields
