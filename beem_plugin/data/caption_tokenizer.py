"""Captions to token ids and back, by the tokenizer of a pretrained decoder, or one trained on the captions."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Registrable
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.data.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

SPECIAL = PAD, START, END, UNKNOWN = ["<pad>", "<s>", "</s>", "<unk>"]


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
        check_number("tokenizer.max_length", max_length, 3)
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
        """The words of `decode(ids)`, each with the positions in `ids` of its tokens; special tokens belong to none."""
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


class TrainedCaptionTokenizer(CaptionTokenizer):
    """Learns its words, which occur `min_count` times or more, or is loaded from `model_name`, such as an archive's."""

    def __init__(self, min_count: int, model_name: str | None = None, max_length: int | None = 32) -> None:
        super().__init__(max_length)
        self.min_count = min_count
        if model_name is not None:
            self._tokenizer = load_tokenizer(model_name)

    def train(self, captions: Iterable[str]) -> None:
        if self.is_trained:
            return
        from transformers import PreTrainedTokenizerFast

        tokenizer, trainer = self.untrained()
        tokenizer.train_from_iterator(captions, trainer)
        self._tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=PAD,
            bos_token=START,
            eos_token=END,
            unk_token=UNKNOWN,
            clean_up_tokenization_spaces=False,
        )
        logger.info("trained a caption tokenizer of %d tokens", self.vocab_size)

    def untrained(self) -> tuple[Any, Any]:
        """A `tokenizers.Tokenizer` and its trainer."""
        raise NotImplementedError(f"{type(self).__name__} does not define untrained")


@CaptionTokenizer.register("trained_bpe")
class TrainedBpeTokenizer(TrainedCaptionTokenizer):
    """
    Byte-pair encoding of bytes, as GPT-2's, with a vocabulary made for the captions: no word is unknown.

    Registered as a `CaptionTokenizer` with name "trained_bpe".

    # Parameters

    vocab_size : `int`, optional (default = `8000`)
        At most so many tokens; at least 260, for the bytes and the four special tokens.
    min_count : `int`, optional (default = `2`)
        A pair that occurs less often is not joined.
    model_name, max_length
        See `TrainedCaptionTokenizer`.
    """

    def __init__(
        self, vocab_size: int = 8000, min_count: int = 2, model_name: str | None = None, max_length: int | None = 32
    ) -> None:
        super().__init__(min_count, model_name, max_length)
        check_number("tokenizer.vocab_size", vocab_size, 260)
        self._size = vocab_size

    def untrained(self) -> tuple[Any, Any]:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
        tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
        return tokenizer, trainers.BpeTrainer(
            vocab_size=self._size,
            min_frequency=self.min_count,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )


@CaptionTokenizer.register("words")
class WordTokenizer(TrainedCaptionTokenizer):
    """
    Whole words in lower case, split at blanks and punctuation: for small vocabularies.

    Registered as a `CaptionTokenizer` with name "words".

    # Parameters

    min_count : `int`, optional (default = `1`)
        Words that occur less often in the training captions are unknown.
    model_name, max_length
        See `TrainedCaptionTokenizer`.
    """

    def __init__(self, min_count: int = 1, model_name: str | None = None, max_length: int | None = 32) -> None:
        super().__init__(min_count, model_name, max_length)

    def untrained(self) -> tuple[Any, Any]:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
        # The most frequent words first, equally frequent ones in alphabetical order.
        return tokenizer, trainers.WordLevelTrainer(
            vocab_size=2**31, min_frequency=self.min_count, special_tokens=SPECIAL, show_progress=False
        )
