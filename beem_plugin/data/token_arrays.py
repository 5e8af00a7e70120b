"""Token ids of many texts in flat arrays, as tokenizers hand them over."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKEN_FIELDS = ("input_ids", "token_type_ids", "words")


@dataclass
class TokenArrays:
    """
    # Parameters

    lengths : `np.ndarray`
        `(texts,)` int64: tokens of each text.
    tokens : `dict[str, np.ndarray]`
        Of each of `TOKEN_FIELDS` that there is, `(all tokens,)` integers, text after text.
    """

    lengths: np.ndarray
    tokens: dict[str, np.ndarray]

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Sequence[int]]]) -> TokenArrays:
        """From a dictionary a text, all with the same keys; others than `TOKEN_FIELDS` are left out."""
        columns = {name: [row[name] for row in rows] for name in TOKEN_FIELDS if rows and name in rows[0]}
        return cls.of_columns(columns, len(rows))

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[Sequence[int]]], texts: int) -> TokenArrays:
        """From a list of ids a text for each field."""
        lengths = np.fromiter(map(len, columns.get("input_ids", ())), dtype=np.int64)
        total = int(lengths.sum())
        tokens = {
            name: np.fromiter(itertools.chain.from_iterable(values), dtype=np.int32, count=total)
            for name, values in columns.items()
        }
        return cls(lengths if columns else np.zeros(texts, dtype=np.int64), tokens)

    @classmethod
    def join(cls, parts: Iterable[TokenArrays]) -> TokenArrays:
        """All texts of `parts`, which have the same fields."""
        parts = list(parts)
        names = parts[0].tokens if parts else ()
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(part.lengths for part in parts)])
        return cls(lengths, {name: np.concatenate([part.tokens[name] for part in parts]) for name in names})

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a text: lists of ids, and the `attention_mask`."""
        ends = self.lengths.cumsum().tolist()
        rows: list[dict[str, Any]] = [{} for _ in ends]
        for name, values in self.tokens.items():
            ids = values.tolist()
            for row, first, last in zip(rows, [0, *ends], ends):
                row[name] = ids[first:last]
        for row in rows if self.tokens else ():
            row["attention_mask"] = [1] * len(row["input_ids"])
        return rows
