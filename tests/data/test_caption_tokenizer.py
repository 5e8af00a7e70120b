from __future__ import annotations

from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data.caption_tokenizer import CaptionTokenizer

CAPTIONS = ["a dog runs on the grass", "two dogs run", "a man's café", "the grass, the dog"]


def trained(kind: str, **extra: object) -> CaptionTokenizer:
    tokenizer = CaptionTokenizer.from_params(Params({"type": kind, **extra}))
    tokenizer.train(CAPTIONS)
    return tokenizer


@pytest.mark.parametrize("kind", ["words", "trained_bpe"])
def test_captions_are_start_words_end_and_come_back(kind: str) -> None:
    tokenizer = trained(kind)
    for caption in CAPTIONS[:2]:
        ids = tokenizer.encode(caption)
        assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids) == tokenizer.decode(ids[1:-1]) == caption
        assert max(ids) < tokenizer.vocab_size
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3


@pytest.mark.parametrize("kind", ["words", "trained_bpe"])
def test_a_saved_tokenizer_is_loaded_and_not_trained_again(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    tokenizer.save(tmp_path)
    again = CaptionTokenizer.from_params(Params({"type": kind, "model_name": str(tmp_path)}))
    plain = CaptionTokenizer.from_params(Params({"model_name": str(tmp_path)}))
    again.train(["something else entirely"])
    for other in (again, plain):
        assert [other.encode(text) for text in CAPTIONS] == [tokenizer.encode(text) for text in CAPTIONS]
        assert other.vocab_size == tokenizer.vocab_size
        assert other.decode(tokenizer.encode(CAPTIONS[0])) == CAPTIONS[0]


def test_byte_pairs_know_every_word_and_words_do_not() -> None:
    strange = "zebra ünïcode 🦓"
    assert trained("trained_bpe").decode(trained("trained_bpe").encode(strange)) == strange
    assert trained("words").decode(trained("words").encode("a zebra")) == "a"


def test_rare_words_are_unknown_where_asked() -> None:
    assert trained("words", min_count=2).decode(trained("words", min_count=2).encode("the grass runs")) == "the grass"


def test_a_long_caption_is_cut_and_has_no_end() -> None:
    tokenizer = trained("words", max_length=4)
    ids = tokenizer.encode("a dog runs on the grass")
    assert len(ids) == 4 and tokenizer.eos_token_id not in ids
    assert len(tokenizer.encode("a dog")) == 4


def test_an_empty_caption_is_the_start_alone() -> None:
    tokenizer = trained("words")
    assert tokenizer.encode("") == [tokenizer.bos_token_id]


def test_words_are_put_together_from_their_tokens() -> None:
    tokenizer = trained("trained_bpe", min_count=100)  # nothing is joined: every byte is a token
    ids = tokenizer.encode("a café runs")[1:]
    words = tokenizer.words(ids)
    assert [word for word, _ in words] == ["a", "café", "runs"]
    positions = [position for _, found in words for position in found]
    assert positions == list(range(len(ids) - 1)), "every token but the end is part of one word"


def test_a_tokenizer_that_is_not_trained_says_so() -> None:
    with pytest.raises(ConfigurationError, match="not trained"):
        CaptionTokenizer.from_params(Params({"type": "words"})).encode("a")


@pytest.mark.parametrize("block", [{"type": "words", "max_length": 2}, {"type": "trained_bpe", "vocab_size": 100}])
def test_sizes_that_cannot_be_are_refused(block: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="allowed: (3|260) or more"):
        CaptionTokenizer.from_params(Params(block))


def test_a_tokenizer_with_one_token_for_end_and_padding_serves(tokenizer_folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tokenizer_folder.parent / "gpt2_like"
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<|endoftext|>")),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    ).save_pretrained(str(folder))
    tokenizer = CaptionTokenizer.from_params(Params({"model_name": str(folder)}))
    assert tokenizer.encode("a") == [0, 1, 0]
    assert tokenizer.pad_token_id == 0
