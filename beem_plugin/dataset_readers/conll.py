"""Tagged words in CoNLL columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import DataError, not_allowed
from beem_plugin.common.files import open_text
from beem_plugin.data.collate import Collator, ragged
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.slices import PARTS, Slicing, split_source
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.data.vocabulary import Vocabulary


@DatasetReader.register("conll")
class ConllReader(DatasetReader):
    """
    One word a line, its columns separated by spaces or tabs; an empty line ends a sentence. Lines that begin with
    `-DOCSTART-` are skipped. A source may have `[fit]` or `[holdout]` behind it.

    Registered as a `DatasetReader` with name "conll".

    # Parameters

    tokenizer : `TextEncoder`
    label_names : `list[str]`
        The tags in their order, such as `["O", "B-PER", "I-PER"]`.
    word_column, tag_column : `int`, optional (default = `0`, `-1`)
    max_instances : `int`, optional (default = `None`)
    holdout_fraction : `float`, optional (default = `0.1`)
    """

    text_fields = ("words",)

    def __init__(
        self,
        tokenizer: TextEncoder,
        label_names: list[str],
        word_column: int = 0,
        tag_column: int = -1,
        max_instances: int | None = None,
        holdout_fraction: float = 0.1,
    ) -> None:
        super().__init__(tokenizer, max_instances, Slicing(holdout_fraction=holdout_fraction))
        self.label_names = label_names
        self.word_column = word_column
        self.tag_column = tag_column

    def read(self, source: str) -> Sequence[Instance]:
        base, part = split_source(str(source), self.parts)
        instances = list(self._read(base))
        if part is not None:
            assigned = self.slicing.assign([self._texts(one) for one in instances], [None] * len(instances))
            instances = [one for one, name in zip(instances, assigned, strict=True) if name in PARTS[part]]
        instances = instances[: self.max_instances]
        if not instances:
            raise DataError(f"{source}: no instances")
        self._encode(instances)
        return instances

    def _read(self, source: str) -> Iterator[Instance]:
        rows: list[tuple[str, str]] = []
        with open_text(source) as file:
            lines = [*file, ""]
        for number, line in enumerate(lines, 1):
            columns = line.split()
            if not columns or columns[0] == "-DOCSTART-":
                if rows:
                    yield Instance({"words": [word for word, _ in rows], "tags": [tag for _, tag in rows]})
                rows = []
                continue
            if not -len(columns) <= min(self.word_column, self.tag_column) <= self.tag_column < len(columns):
                raise DataError(f"{source}:{number}: found {len(columns)} columns, column {self.tag_column} is the tag")
            word, tag = columns[self.word_column], columns[self.tag_column]
            if tag not in (self.label_names or ()):
                raise DataError(not_allowed(f"{source}:{number}: tag", tag, self.label_names or ()))
            rows.append((word, tag))

    def _instance(self, fields: dict[str, Any]) -> Instance:
        return Instance({"words": fields["words"], "tags": fields.get("tags")}, id=fields.get("id"))

    def _texts(self, instance: Instance) -> tuple[str, ...]:
        return (" ".join(instance.fields["words"]),)

    def _encode(self, instances: Sequence[Instance]) -> None:
        """Sets token ids, and in the field `starts` the position of each word's first token."""
        tokenizer = self.tokenizer.tokenizer
        options = {"truncation": self.tokenizer.max_length is not None, "max_length": self.tokenizer.max_length}
        for instance in instances:
            words = list(instance.fields["words"])
            found = tokenizer(words, is_split_into_words=True, **options)
            with_tokens = {word for word in found.word_ids() if word is not None}
            # A word of characters that the tokenizer drops needs a token for its tag.
            without = set(range(max(with_tokens, default=-1))) - with_tokens
            if without:
                words = [tokenizer.unk_token if number in without else word for number, word in enumerate(words)]
                found = tokenizer(words, is_split_into_words=True, **options)
            instance.encoding = {name: found[name] for name in tokenizer.model_input_names}
            firsts = {word: place for place, word in reversed(list(enumerate(found.word_ids()))) if word is not None}
            instance.fields["starts"] = [firsts[word] for word in sorted(firsts)]

    def collator(self, vocab: Vocabulary, pad_token_id: int) -> Collator:
        return TaggedWords(vocab, pad_token_id)


class TaggedWords:
    """Padded tokens with `label`, `(batch, tokens)`: a tag at each word's first token, -1 elsewhere; and `words`."""

    def __init__(self, vocab: Vocabulary, pad_token_id: int) -> None:
        self.vocab = vocab
        self.pad_token_id = pad_token_id

    def __call__(self, instances: Sequence[Instance], indices: Sequence[int]) -> dict[str, Tensor]:
        batch = ragged(instances, self.pad_token_id).padded(always_mask=True)
        batch["attention_mask"] = batch["attention_mask"].to(torch.int64)
        label = torch.full(batch["input_ids"].shape, -1)
        words = torch.zeros(batch["input_ids"].shape, dtype=torch.bool)
        for row, instance in enumerate(instances):
            starts, tags = instance.fields["starts"], instance.fields.get("tags")
            words[row, starts] = True
            if tags is not None:
                label[row, starts] = torch.tensor([self.vocab.label_index(tag) for tag in tags[: len(starts)]])
        return {**batch, "label": label, "words": words, "index": torch.tensor(indices, dtype=torch.int64)}
