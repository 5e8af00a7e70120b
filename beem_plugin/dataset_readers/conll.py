"""Tagged words in CoNLL columns."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import DataError, not_allowed
from beem_plugin.common.text_input import open_text
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.ragged_batch import TOKEN_FIELDS, RaggedBatch
from beem_plugin.data.table_file import TableRow
from beem_plugin.data.tokenizer import TextEncoder

LOOKED_AT = 5
"""Lines of words that tell columns from other files."""


@DatasetReader.register("conll")
class ConllReader(DatasetReader):
    """
    One word a line, its columns separated by blanks; an empty line ends a sentence; `-DOCSTART-` lines are skipped. A
    source may have `[fit]` or `[holdout]` behind it. `predict` reads such files, too, and JSON lines and tables whose
    `words` are a list or a text, and lines of text.

    Registered as a `DatasetReader` with name "conll".

    # Parameters

    tokenizer : `TextEncoder`
    label_names : `list[str]`
        The tags in their order, such as `["O", "B-PER", "I-PER"]`.
    word_column, tag_column : `int`, optional (default = `0`, `-1`)
    max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
        See `DatasetReader`.
    """

    text_fields = ("words",)
    text_types = (str, list)

    def __init__(
        self, tokenizer: TextEncoder, label_names: list[str], word_column: int = 0, tag_column: int = -1, **options: Any
    ) -> None:
        super().__init__(tokenizer, **options)
        self.label_names: list[str] = label_names
        self.columns = word_column, tag_column

    def _read(self, source: str) -> Iterator[Instance]:
        rows: list[tuple[str, str]] = []
        with open_text(source) as file:
            for number, line in enumerate([*file, ""], 1):
                columns = line.split()
                if columns and columns[0] != "-DOCSTART-":
                    word, tag = (columns[min(place, len(columns) - 1)] for place in self.columns)
                    if tag not in self.label_names:
                        raise DataError(not_allowed(f"{source}:{number}: tag", tag, self.label_names))
                    rows.append((word, tag))
                elif rows:
                    words, tags = zip(*rows, strict=True)
                    yield Instance({"words": list(words)}, label=tags)
                    rows = []

    def rows(self, source: str, format: str | None = None) -> Iterator[TableRow]:
        if format is None and Path(source).is_file() and self._has_columns(source):
            for instance in self._read(source):
                yield TableRow(source, {**instance.fields, "label": instance.label})
            return
        yield from super().rows(source, format)

    def _has_columns(self, source: str) -> bool:
        """Whether the first lines end in tags."""
        place = self.columns[1]
        with open_text(source) as file:
            lines = (line.split() for line in file)
            rows = (row for row in lines if row and row[0] != "-DOCSTART-")
            first = list(islice(rows, LOOKED_AT))
        return bool(first) and all(len(row) > 1 and row[min(place, len(row) - 1)] in self.label_names for row in first)

    def _instance(self, fields: dict[str, Any]) -> Instance:
        tags = fields.get("tags")
        return Instance(
            {**fields, "words": words_of(fields)}, label=None if tags is None else tuple(tags), id=fields.get("id")
        )

    def _texts(self, instance: Instance) -> tuple[str, ...]:
        return (" ".join(words_of(instance.fields)),)

    def _encode_batch(self, instances: Sequence[Instance]) -> RaggedBatch:
        """With `words`: 1 at the first token of each word, 0 elsewhere."""
        tokenizer, limit = self.tokenizer.tokenizer, self.tokenizer.max_length
        sentences = [words_of(instance.fields) for instance in instances]
        words = {word for sentence in sentences for word in sentence}
        shown = {word: word if tokenizer.tokenize(word) else tokenizer.unk_token for word in words}
        texts = [[shown[word] for word in sentence] for sentence in sentences]
        found = tokenizer(texts, is_split_into_words=True, truncation=limit is not None, max_length=limit)
        places = map(found.word_ids, range(len(texts)))
        firsts = [[int(one not in (None, before)) for before, one in zip([None, *row], row)] for row in places]
        columns = {name: found[name] for name in TOKEN_FIELDS if name in found}
        return RaggedBatch.from_columns({**columns, "words": firsts})


def words_of(fields: Mapping[str, Any]) -> list[str]:
    """The words of a sentence, which may be given as a text."""
    return fields["words"].split() if isinstance(fields["words"], str) else fields["words"]
