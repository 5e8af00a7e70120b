"""One sample, as read and as tokenized."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Instance:
    """
    # Parameters

    fields : `dict[str, Any]`
        The raw input fields as read, JSON-able, with `id` if there is one; never the label.
    encoding : `dict[str, list[int]]`, optional (default = `{}`)
        `input_ids`, `attention_mask`, and `token_type_ids` if the tokenizer makes them, not padded.
    label : `str | float | tuple[str, ...] | None`, optional (default = `None`)
        The label's name; a float for regression; a tag for each word; `None` where it is unknown.
    id : `str | int | None`, optional (default = `None`)
    """

    fields: dict[str, Any]
    encoding: dict[str, list[int]] = field(default_factory=dict)
    label: Any = None
    id: str | int | None = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.encoding.get("input_ids", ()))
