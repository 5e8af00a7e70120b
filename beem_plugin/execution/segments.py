"""Which layers and decisions go into one captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """
    # Parameters

    layers : `range`
        The exits whose layers run.
    decisions : `range`
        The exits at which is decided.
    asked : `tuple[int, ...]`
        Those of them at which somebody can leave, and the last exit.
    """

    layers: range
    decisions: range
    asked: tuple[int, ...]


def plan_segments(num_exits: int, can_leave: Sequence[bool], check_every: int, lookahead: bool) -> list[Segment]:
    """
    Cuts the network after every `check_every` exits at which somebody can leave.

    # Parameters

    num_exits : `int`
    can_leave : `Sequence[bool]`
        Whether somebody can leave at exit 1, 2, ...
    check_every : `int`
    lookahead : `bool`
        The layers behind a segment's last decision belong to it, so that they run while the host is told of it.
    """
    leaving = [number for number in range(1, num_exits) if can_leave[number - 1]]
    cuts = leaving[check_every - 1 :: check_every]
    segments: list[Segment] = []
    layer = decided = 0
    for cut in [*cuts, num_exits]:
        upto = min(cut + 1, num_exits) if lookahead else cut
        if upto == num_exits:  # what follows would be a decision alone
            cut = num_exits
        asked = tuple(number for number in range(decided + 1, cut + 1) if number in leaving or number == num_exits)
        segments.append(Segment(range(layer + 1, upto + 1), range(decided + 1, cut + 1), asked))
        layer, decided = upto, cut
        if cut == num_exits:
            break
    return segments
