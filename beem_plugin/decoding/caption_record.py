"""A decoded caption as JSON: its words and the exit of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.decoding.generated import GeneratedCaption


def caption_record(
    caption: GeneratedCaption, tokenizer: CaptionTokenizer, exit_layers: Sequence[int]
) -> dict[str, Any]:
    """
    # Returns

    `dict[str, Any]`
        `caption`; `words`, each with `word`, `exit` (the deepest of its tokens), `layer` and `log_probability` (the sum
        over its tokens); `tokens` and `exits`, one entry per token, EOS included; `score`, the
        caption's log-probability.
    """
    words = []
    for word, positions in tokenizer.words(caption.tokens):
        exit_number = max(caption.exits[position] for position in positions)
        words.append(
            {
                "word": word,
                "exit": exit_number,
                "layer": exit_layers[exit_number - 1],
                "log_probability": sum(caption.log_probabilities[position] for position in positions),
            }
        )
    return {
        "caption": tokenizer.decode(caption.tokens),
        "words": words,
        "tokens": list(caption.tokens),
        "exits": list(caption.exits),
        "score": caption.score,
    }
