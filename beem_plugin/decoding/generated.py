from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class GeneratedCaption:
    """
    One caption as it was decoded: its tokens and the exit of each.

    # Parameters

    tokens : `list[int]`
        Token ids in order, without the start token; the end token is the last one if it was reached.
    exits : `list[int]`
        One exit number (`1..num_exits`) for each token.
    log_probabilities : `list[float]`
        Natural logarithm of each token's probability at its exit.
    score : `float`
        Sum of `log_probabilities`; beams are ranked by it after their length penalty, which it does not contain.
    """

    tokens: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    score: float = 0.0
