"""A decoded caption, and its JSON record."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beem_plugin.data.caption_tokenizer import CaptionTokenizer


@dataclass
class GeneratedCaption:
    """
    A decoded caption: its tokens and their exits.

    # Parameters

    tokens : `list[int]`
        Token ids in order, without BOS; EOS is the last one if it was reached.
    exits : `list[int]`
        One exit number (`1..num_exits`) for each token.
    log_probabilities : `list[float]`
        Natural logarithm of each token's probability at its exit.
    score : `float`
        Sum of `log_probabilities`; without the length penalty by which beams are ranked.
    """

    tokens: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    score: float = 0.0


def caption_record(
    caption: GeneratedCaption, tokenizer: CaptionTokenizer, exit_layers: Sequence[int]
) -> dict[str, Any]:
    """
    `caption`; `words`, each with `word`, `exit` (the deepest of its tokens), `layer` and `log_probability` (the sum
    over its tokens); `tokens` and `exits`, one entry per token, EOS included; `score`, the caption's log-probability.
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
