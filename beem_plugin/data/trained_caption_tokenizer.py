"""Caption tokenizers that learn their words from the training captions."""

import logging
from collections.abc import Iterable
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

SPECIAL = PAD, START, END, UNKNOWN = ["<pad>", "<s>", "</s>", "<unk>"]


class TrainedCaptionTokenizer(CaptionTokenizer):
    """
    Learns its words from the training captions; what occurs less often than `min_count` is no word. With `model_name`,
    a folder in which such a tokenizer was saved, it is loaded, and nothing is learnt: so an archive brings its own.
    """

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
        self,
        vocab_size: int = 8000,
        min_count: int = 2,
        model_name: str | None = None,
        max_length: int | None = 32,
    ) -> None:
        super().__init__(min_count, model_name, max_length)
        if vocab_size < 260:
            raise ConfigurationError(f"tokenizer.vocab_size: found {vocab_size}, allowed: at least 260")
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
