"""Texts to token ids, by the tokenizer of a pretrained model."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, first_line
from beem_plugin.common.registry import FromParams
from beem_plugin.data.hub import hub_error, hub_options, resolve_model_name
from beem_plugin.data.ragged_batch import TOKEN_FIELDS, RaggedBatch

KEY = "model_name"

_NO_LIMIT = 1_000_000  # transformers gives a tokenizer without a limit an integer of thirty digits


class TextEncoder(FromParams):
    """
    The `tokenizer` block of a dataset reader: transformers' `AutoTokenizer` for one text or a pair.

    # Parameters

    model_name : `str`
        A name in the hub, a folder, or `package:minilm`.
    max_length : `int`, optional (default = `128`)
        Longer inputs are cut to this many tokens, special tokens included; of a pair the longer text is cut first.
        `null`, or more than the model can take, means the model's own limit.
    """

    def __init__(self, model_name: str, max_length: int | None = 128) -> None:
        self.model_name = model_name
        self.tokenizer = load_tokenizer(model_name)
        limit = self.tokenizer.model_max_length
        limits = [length for length in (max_length, limit if limit < _NO_LIMIT else None) if length is not None]
        self.max_length: int | None = min(limits, default=None)
        if self.max_length is not None and self.max_length < 4:
            raise ConfigurationError(f"max_length: found {max_length}, allowed: at least 4")

    def limit_length(self, max_tokens: int) -> None:
        """Bounds `max_length` by the longest input that the model takes."""
        self.max_length = max_tokens if self.max_length is None else min(self.max_length, max_tokens)

    @property
    def pad_token_id(self) -> int:
        """0 for a tokenizer without a padding token: padding is masked."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included: the number of embeddings that a model needs."""
        return 1 + max(self.tokenizer.get_vocab().values())

    def encode(self, texts: tuple[str, ...]) -> dict[str, list[int]]:
        """`input_ids`, `attention_mask` and, if the model takes them, `token_type_ids` of one text or pair."""
        return self.encode_batch([texts]).rows()[0]

    def encode_batch(self, texts: Sequence[tuple[str, ...]]) -> RaggedBatch:
        """`encode` of one or more single texts, or of pairs."""
        return self._encode_fast(texts) if self._is_fast else self._encode_slowly(texts)

    @cached_property
    def _is_fast(self) -> bool:
        """Whether the tokenizer is a Rust one, called in no other way than transformers' own class calls it."""
        from transformers import PreTrainedTokenizerFast

        kind = type(self.tokenizer)
        return issubclass(kind, PreTrainedTokenizerFast) and kind._encode_plus is PreTrainedTokenizerFast._encode_plus

    def _encode_fast(self, texts: Sequence[tuple[str, ...]]) -> RaggedBatch:
        from transformers.tokenization_utils_base import PaddingStrategy, TruncationStrategy

        # transformers' own call builds a `BatchEncoding` with offsets, which takes longer than tokenizing.
        self.tokenizer.set_truncation_and_padding(
            PaddingStrategy.DO_NOT_PAD,
            TruncationStrategy.DO_NOT_TRUNCATE if self.max_length is None else TruncationStrategy.LONGEST_FIRST,
            max_length=self.max_length,
            stride=0,
            pad_to_multiple_of=None,
            padding_side=None,
        )
        is_single = len(texts[0]) == 1
        inputs = [text for (text,) in texts] if is_single else list(texts)
        encoded = self.tokenizer.backend_tokenizer.encode_batch_fast(inputs)
        columns: dict[str, Any] = {"input_ids": [one.ids for one in encoded]}
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        # All single texts have the types of the longest one, which has tokens of every kind.
        is_zero = has_types and is_single and not any(max(encoded, key=len).type_ids)
        if has_types and not is_zero:
            columns["token_type_ids"] = [one.type_ids for one in encoded]
        found = RaggedBatch.from_columns(columns)
        if is_zero:
            found.tokens["token_type_ids"] = torch.zeros_like(found.tokens["input_ids"])
        return found

    def _encode_slowly(self, texts: Sequence[tuple[str, ...]]) -> RaggedBatch:
        batch = self.tokenizer(
            *(list(column) for column in zip(*texts, strict=True)),
            truncation="longest_first" if self.max_length is not None else False,
            max_length=self.max_length,
            padding=False,
        )
        return RaggedBatch.from_columns({name: batch[name] for name in TOKEN_FIELDS if name in batch})

    def save(self, folder: str | Path) -> None:
        """Everything that `model_name: folder` needs to build this tokenizer again."""
        self.tokenizer.save_pretrained(str(folder))


def load_tokenizer(model_name: str) -> Any:
    """transformers' tokenizer from the hub, a folder or a package, or an error that names the remedy."""
    from transformers import AutoTokenizer

    folder_or_name = resolve_model_name(model_name, KEY)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder_or_name, trust_remote_code=False, **hub_options())
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # built from its settings, without tokenizer.json
            raise ValueError("it has no vocabulary, only special tokens")
        return tokenizer
    except Exception as error:  # a damaged file fails in the libraries in any way
        if not Path(folder_or_name).is_dir():
            raise hub_error(KEY, model_name, error) from error
        found = ", ".join(sorted(path.name for path in Path(folder_or_name).iterdir())) or "nothing"
        raise ConfigurationError(
            f"{KEY}: no tokenizer could be loaded from the folder {folder_or_name} (found {found}): {first_line(error)}"
        ) from error
