"""Captions to token ids and back, by the tokenizer of a pretrained decoder."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.data.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


class CaptionTokenizer(Registrable):
    """
    The `tokenizer` block of a captions reader. A caption is encoded as start token, words, end token.

    # Parameters

    max_length : `int | None`, optional (default = `32`)
        Longer captions are cut to this many tokens, the start token included. A caption that was cut has no end token,
        so that the decoder does not learn to stop in the middle of a sentence.

    # Attributes

    bos_token_id, eos_token_id, pad_token_id : `int`
        The last two may be equal, as GPT-2's are: only the attention mask tells an end from padding.
    vocab_size : `int`
    """

    default_implementation = "pretrained"

    def __init__(self, max_length: int | None = 32) -> None:
        if max_length is not None and max_length < 3:
            raise ConfigurationError(f"tokenizer.max_length: found {max_length}, allowed: at least 3")
        self.max_length = max_length
        self._tokenizer: Any = None

    @property
    def is_trained(self) -> bool:
        return self._tokenizer is not None

    def train(self, captions: Iterable[str]) -> None:
        """Learns the words from the training captions; nothing to do for a tokenizer that knows them."""

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        if self._tokenizer is None:
            raise ConfigurationError("tokenizer: not trained yet; it learns its words when the reader reads data")
        return self._tokenizer

    @property
    def bos_token_id(self) -> int:
        return self._special("bos_token_id", "cls_token_id")

    @property
    def eos_token_id(self) -> int:
        return self._special("eos_token_id", "sep_token_id")

    @property
    def pad_token_id(self) -> int:
        """The end token where there is no padding token."""
        found = self.tokenizer.pad_token_id
        return self.eos_token_id if found is None else found

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included."""
        return len(self.tokenizer)

    def encode(self, caption: str) -> list[int]:
        """Start, words, end."""
        return self.encode_batch([(caption,)]).tokens["input_ids"].tolist()

    def encode_batch(self, texts: Sequence[tuple[str, ...]]) -> RaggedBatch:
        """`encode` of one or more captions; of an empty one it is the start token alone."""
        words = self.tokenizer([caption for (caption,) in texts], add_special_tokens=False)["input_ids"]
        bos, eos = self.bos_token_id, self.eos_token_id
        rows = [[bos, *ids, eos] if ids else [bos] for ids in words]
        cut = [row if self.max_length is None else row[: self.max_length] for row in rows]
        shortened = sum(len(kept) < len(row) for kept, row in zip(cut, rows))
        if shortened:
            logger.info("cut %d of %d captions to %d tokens", shortened, len(rows), self.max_length)
        return RaggedBatch.from_columns({"input_ids": cut})

    def decode(self, ids: Sequence[int]) -> str:
        """The caption, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False).strip()

    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """
        The words of `decode(ids)`, each with the positions in `ids` of the tokens that it is made of. Special tokens
        are part of no word.
        """
        special = set(self.tokenizer.all_special_ids)
        words: list[tuple[str, list[int]]] = []
        before = ""
        kept: list[int] = []
        for position, token in enumerate(ids):
            if token in special:
                continue
            kept.append(token)
            # Decoded from the start: what a token adds depends on those before it.
            text = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            added = text[len(before) :]
            if not words or added[:1].isspace():
                words.append((added.strip(), [position]))
            else:
                # From the text, not `word + added`: a token may hold half a character, which the next one completes.
                words[-1] = (([""] + text.split())[-1], words[-1][1] + [position])
            before = text
        return words

    def save(self, folder: str | Path) -> None:
        """As transformers does, for `model_name: folder`."""
        self.tokenizer.save_pretrained(str(folder))

    def _special(self, name: str, instead: str) -> int:
        found = getattr(self.tokenizer, name)
        found = getattr(self.tokenizer, instead) if found is None else found
        if found is None:
            raise ConfigurationError(
                f"tokenizer: {self.tokenizer.name_or_path} has neither {name} nor {instead}; allowed: a tokenizer with "
                "a token that starts and one that ends a text, as gpt2, or `trained_bpe` or `words`"
            )
        return int(found)


@CaptionTokenizer.register("pretrained")
class PretrainedCaptionTokenizer(CaptionTokenizer):
    """
    The tokenizer of a pretrained decoder, or one that was saved with an archive.

    Registered as a `CaptionTokenizer` with name "pretrained", the default.

    # Parameters

    model_name : `str`
        A name in the hub, as `gpt2`, or a folder.
    max_length : `int | None`, optional (default = `32`)
        See `CaptionTokenizer`.
    """

    def __init__(self, model_name: str, max_length: int | None = 32) -> None:
        super().__init__(max_length)
        self._tokenizer = load_tokenizer(model_name)
