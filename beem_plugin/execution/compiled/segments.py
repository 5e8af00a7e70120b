"""Which layers and decisions go into one captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """
    # Parameters

    layers : `range`
        The exits whose layers are computed.
    decisions : `range`
        The exits at which the policy is stepped.
    awaited : `tuple[int, ...]`
        The exits among `decisions` whose results the host reads: those where samples can exit, and the last.
    """

    layers: range
    decisions: range
    awaited: tuple[int, ...]


def plan_segments(num_exits: int, can_exit: Sequence[bool], check_every: int, lookahead: bool) -> list[Segment]:
    """
    Divides the network after every `check_every` exits where samples can exit.

    # Parameters

    num_exits : `int`
    can_exit : `Sequence[bool]`
        Whether samples can exit at exit 1, 2, ...
    check_every : `int`
    lookahead : `bool`
        Whether a segment also has the layers after its last decision, which run while the host reads the results.
    """
    possible = [number for number in range(1, num_exits) if can_exit[number - 1]]
    cuts = possible[check_every - 1 :: check_every]
    segments: list[Segment] = []
    layer = decided = 0
    for cut in [*cuts, num_exits]:
        end = min(cut + 1, num_exits) if lookahead else cut
        if end == num_exits:  # the rest would be a decision without layers
            cut = num_exits
        awaited = tuple(number for number in range(decided + 1, cut + 1) if number in possible or number == num_exits)
        segments.append(Segment(range(layer + 1, end + 1), range(decided + 1, cut + 1), awaited))
        layer, decided = end, cut
        if cut == num_exits:
            break
    return segments
