from __future__ import annotations

from dataclasses import dataclass, field


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
