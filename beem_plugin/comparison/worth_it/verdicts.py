"""What to ship at each speed: exits, or the plain networks that are best at the same cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beem_plugin.comparison.plain_networks import right_of_last_exit
from beem_plugin.comparison.worth_it.networks import CASCADE_RULE, Alternative, Networks, Plain
from beem_plugin.comparison.worth_it.rules import REACHED, Fitted, Rule, best_rule
from beem_plugin.evaluation.statistics import Difference, crossed_difference

SPEEDS = (1.5, 2.0, 2.5, 3.0)
LAYERS = "layers"


@dataclass
class Option:
    """
    Something that can be shipped: a plain network, a cascade, or a rule on exits.

    # Parameters

    kind : `str`
        `"plain"`, `"cascade"` or `"exits"`.
    fitted_for : `float`, optional
        The speed; `None` of a plain network.
    right : `ndarray`
        `(seeds, samples)` 1.0 where the prediction is right.
    speedups : `list[float]`
        Layer speed-up of each seed over the plain network of full depth.
    members : `tuple[Plain, ...]`
        The plain networks that it is made of.
    fitted : `Fitted`, optional
        Policy and exits of each seed.
    rule : `dict`, optional
        The policy's config as it was given.
    against_full : `Difference`, optional
        Of accuracy, from the plain network of full depth.
    against_plain : `dict[str, Difference]`
        Of exits: from plain networks or their cascade at equal layers, and at equal seconds by way of running.
    measured : `dict[str, float]`
        Measured speed-up over the plain network of full depth, by way of running.
    """

    name: str
    kind: str
    fitted_for: float | None
    right: np.ndarray
    speedups: list[float]
    members: tuple[Plain, ...] = ()
    fitted: Fitted | None = None
    rule: Mapping[str, Any] | None = None
    against_full: Difference | None = None
    against_plain: dict[str, Difference] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def layer_speedup(self) -> float:
        """Of the mean cost over seeds."""
        return len(self.speedups) / sum(1 / speed for speed in self.speedups)

    @property
    def key(self) -> str:
        """The name, unique among all options."""
        return self.name if self.fitted_for is None else f"{self.name}, {self.fitted_for:g}x"

    @property
    def family(self) -> str:
        """What it shares a curve with."""
        return Alternative(self.members).name if self.kind == "plain" else self.name

    @property
    def figures(self) -> str:
        return f"({100 * self.accuracy:.1f} %, {self.layer_speedup:.2f}x)"


@dataclass
class Seconds:
    """Seconds a sample, measured one way: of plain networks by depth, of other options by key."""

    plain: dict[int, float]
    options: dict[str, float]


Clock = Callable[[Sequence[Option]], Mapping[str, Seconds]]
"""Measures options; the result by way of running, `"single"` or `"file"`."""


@dataclass
class Verdict:
    """
    # Parameters

    speed : `float`
    ships_exits : `bool`
    ship : `Option`
    exits : `Option`, optional
        The rule that was best at this speed on held-out data; `None` if none reaches it.
    alternative : `Alternative`
        The plain networks or the cascade that were best at this speed on held-out data.
    difference : `Difference`, optional
        Exits less the alternative at equal cost.
    """

    speed: float
    ships_exits: bool
    ship: Option
    exits: Option | None
    alternative: Alternative
    difference: Difference | None

    @property
    def is_tie(self) -> bool:
        return self.difference is not None and self.difference.within_noise

    @property
    def sentence(self) -> str:
        article = "" if self.ships_exits else "the "
        start = f"at {self.speed:g}x ship {article}{self.ship.name} {self.ship.figures}: "
        if self.exits is None or self.difference is None:
            return f"{start}early exit does not get there"
        found = self.difference.difference
        points = f"{100 * abs(found):.1f} points {'above' if found > 0 else 'below'}"
        compared = f"{points} {self.alternative.name} at equal cost"
        p_value = "" if self.difference.p_value is None else f" (p {self.difference.p_value:.3f})"
        noise = ", within noise" if self.is_tie else ""
        if self.ships_exits:
            several = " and in one network" if self.is_tie else ""
            return f"{start}{compared}{p_value}{noise}{several}"
        return f"{start}{self.exits.name} {self.exits.figures} is {compared}{p_value}{noise}"


def choose_options(
    networks: Networks,
    rules: Mapping[str, Mapping[str, Any]],
    speeds: Sequence[float] = SPEEDS,
    cascades: Sequence[tuple[int, ...]] | None = None,
) -> tuple[list[Option], dict[float, tuple[Option | None, Alternative]]]:
    """
    All plain networks, and for each speed the rule and the alternative that are best on held-out data; a cascade among
    these is an option, too.

    # Parameters

    networks : `Networks`
    rules : `Mapping[str, Mapping]`
        Configs of exit policies by name; thresholds in them are replaced.
    speeds : `Sequence[float]`
        Over the plain network of full depth, in layers.
    cascades : `Sequence[tuple[int, ...]]`, optional (default = all pairs)
        Depths of the networks of each cascade.
    """
    options = []
    for plain in sorted(networks.plain, reverse=True):
        right = np.stack([right_of_last_exit(traces.reported) for traces in networks.plain[plain]])
        speedups = [networks.depth / plain.layers] * len(right)
        options.append(Option(plain.name, "plain", None, right, speedups, (plain,)))
    chosen: dict[float, tuple[Option | None, Alternative]] = {}
    fitted_rules = {name: Rule(rule, networks.exits) for name, rule in rules.items()}
    for speed in speeds:
        cost = networks.depth / speed
        alternative = best_alternative(networks, networks.alternatives(cascades), cost)
        if alternative.is_cascade:
            cascade = Rule(CASCADE_RULE, networks.cascade(alternative))
            options.append(option(networks, "cascade", alternative.name, speed, cascade, alternative.members))
        best, exits = best_rule(fitted_rules, cost), None
        if best is not None:
            exits = option(networks, "exits", f"early exit with {best}", speed, fitted_rules[best])
            options.append(exits)
        # On other data than held-out ones it may be slower or faster: it is compared at the cost that it then has.
        chosen[speed] = (exits, alternative)
    return options, chosen


def option(
    networks: Networks, kind: str, name: str, speed: float, rule: Rule, members: tuple[Plain, ...] = ()
) -> Option:
    """A rule, or a cascade's, fitted for a speed."""
    fitted = rule.fit(networks.depth / speed)
    speedups = [networks.depth / cost for cost in fitted.costs]
    return Option(name, kind, speed, fitted.right, speedups, members, fitted, rule.config)


def best_alternative(networks: Networks, alternatives: Sequence[Alternative], cost: float) -> Alternative:
    """The alternative with the highest held-out accuracy at a mean cost in layers, the simplest one of equals."""
    reaching = [one for one in alternatives if REACHED * one.members[0].layers <= cost]
    return max(reaching or alternatives[:1], key=lambda one: float(networks.right_at(one, cost, "held_out").mean()))


def judge(
    networks: Networks,
    options: Sequence[Option],
    chosen: Mapping[float, tuple[Option | None, Alternative]],
    seconds: Mapping[str, Seconds],
    by: str = LAYERS,
) -> list[Verdict]:
    """
    Sets the differences and measured speeds of the options, and decides: exits are shipped where they are better than
    the alternative at equal cost. Within noise the simpler is: a plain network before exits, exits before a cascade.

    # Parameters

    options, chosen
        See `choose_options`.
    seconds : `Mapping[str, Seconds]`
        By way of running; may be empty.
    by : `str`, optional (default = `"layers"`)
        What equal cost means, or a key of `seconds`.
    """
    full = next(one for one in options if one.members == (networks.full,))
    for one in options:
        if one is not full:
            one.against_full = crossed_difference(one.right, full.right)
        for way, found in seconds.items():
            own = found.plain[one.members[0].layers] if one.kind == "plain" else found.options[one.key]
            one.measured[way] = found.plain[networks.depth] / own
    verdicts = []
    for speed, (exits, alternative) in chosen.items():
        difference = None
        if exits is not None:
            assert exits.fitted is not None
            # A rule above the requested speed is compared with networks at the requested speed.
            spent: dict[str, tuple[float, float, dict[int, float] | None]] = {
                LAYERS: (exits.fitted.cost, float(networks.depth), None)
            }
            spent |= {
                way: (one.options[exits.key], one.plain[networks.depth], one.plain) for way, one in seconds.items()
            }
            for unit, (own, whole, costs) in spent.items():
                right = networks.right_at(alternative, max(own, whole / speed), "reported", costs)
                exits.against_plain[unit] = crossed_difference(exits.right, right)
            difference = exits.against_plain[by]
        ships_exits = difference is not None and (
            alternative.is_cascade if difference.within_noise else difference.difference > 0
        )
        ship = exits if ships_exits and exits is not None else shipped(networks, options, alternative, speed)
        verdicts.append(Verdict(speed, ships_exits, ship, exits, alternative, difference))
    return verdicts


def shipped(networks: Networks, options: Sequence[Option], alternative: Alternative, speed: float) -> Option:
    """
    Of the options that reach the speed the cascade, or the deepest of the plain networks; if none does, the fastest.
    """
    own = [one for one in options if one.kind == "plain" and one.members[0] in alternative.members]
    fast = (
        [one for one in options if one.kind == "cascade" and one.fitted_for == speed] if alternative.is_cascade else []
    )
    fast = [one for one in fast or own if one.layer_speedup >= REACHED * speed]
    return max(fast, key=lambda one: one.members[0].layers) if fast else max(own, key=lambda one: one.layer_speedup)


def headline(verdicts: Sequence[Verdict]) -> str:
    """The answer in one sentence."""

    def at(chosen: Sequence[Verdict]) -> str:
        return listed([f"{one.speed:g}x" for one in chosen])

    better = [one for one in verdicts if one.ships_exits and not one.is_tie]
    tied = [one for one in verdicts if one.ships_exits and one.is_tie]
    others = listed([f"the {one.ship.name} at {one.speed:g}x" for one in verdicts if not one.ships_exits])
    if not better and not tied:
        return f"Early exit is not worth it here: ship {others}."
    parts = [f"worth it here at {at(better)}"] if better else []
    parts += [f"as good as a cascade of networks at {at(tied)}"] if tied else []
    return f"Early exit is {' and '.join(parts)}{f'; else ship {others}' if others else ''}."


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + "".join(parts[-1:])
