"""The depth of captions by class of word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.decoding.generated import GeneratedCaption

_FUNCTION_WORDS = """
a an the and or but of in on at to by for with from into onto over under near next behind beside between through across
along around up down out off above below is are was were be being been am has have had do does did it its his her their
he she they them him this that these those there as while who which some each other one s
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English articles, conjunctions, prepositions, auxiliaries and pronouns, as far as captions have them."""

WORD_CLASSES = ("first", "function", "content", "end")


def exits_by_class(
    captions: Sequence[GeneratedCaption], tokenizer: CaptionTokenizer, num_exits: int
) -> dict[str, dict[str, Any]]:
    """
    By `WORD_CLASSES`, as far as there are any: `tokens`, `average_exit`, and `exit_histogram`, tokens by exit. A word
    of several tokens counts with each of them; `end` is EOS.
    """
    found: dict[str, list[int]] = {name: [] for name in WORD_CLASSES}
    for caption in captions:
        for number, (word, positions) in enumerate(tokenizer.words(caption.tokens)):
            kind = "first" if number == 0 else "function" if word.lower() in FUNCTION_WORDS else "content"
            found[kind] += [caption.exits[position] for position in positions]
        if tokenizer.eos_token_id in caption.tokens[-1:]:
            found["end"].append(caption.exits[-1])
    return {
        name: {
            "tokens": len(exits),
            "average_exit": sum(exits) / len(exits),
            "exit_histogram": [exits.count(number) for number in range(1, num_exits + 1)],
        }
        for name, exits in found.items()
        if exits
    }


def depths(
    captions: Sequence[GeneratedCaption], tokenizer: CaptionTokenizer, exit_layers: Sequence[int]
) -> dict[str, Any]:
    """How deep tokens went, all of them and by class of word; and how long captions are."""
    exits = torch.tensor([number for caption in captions for number in caption.exits], dtype=torch.int64)
    unfinished = repeating = 0
    for caption in captions:
        unfinished += tokenizer.eos_token_id not in caption.tokens[-1:]
        words = tokenizer.words(caption.tokens)
        repeating += any(one == other for (one, _), (other, _) in zip(words, words[1:]))
    by_class = exits_by_class(captions, tokenizer, len(exit_layers))
    return {
        **depth_summary(exits, exit_layers),
        "average_exit_by_word": {name: found["average_exit"] for name, found in by_class.items()},
        "exit_histogram_by_word": {name: found["exit_histogram"] for name, found in by_class.items()},
        "tokens": len(exits),
        "distinct_captions": len({tuple(caption.tokens) for caption in captions}),
        "unfinished_captions": unfinished,
        "repeating_captions": repeating,
    }
