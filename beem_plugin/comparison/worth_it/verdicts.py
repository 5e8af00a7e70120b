"""What to ship at each speed: exits, or the plain networks that are best at the same layers or measured seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beem_plugin.archival import Archive
from beem_plugin.comparison.worth_it.networks import Alternative, Networks, Plain
from beem_plugin.comparison.worth_it.options import REACHED, Option, best_alternative
from beem_plugin.data.collate import ragged_parts
from beem_plugin.data.instance import Instance
from beem_plugin.evaluation.statistics import Difference, crossed_difference
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import build_file_engine
from beem_plugin.execution.metering.timing import measure
from beem_plugin.execution.single import Single
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy

LAYERS = "layers"
WAYS = {"single": 200, "file": 2000}  # ways of running, and how many samples are timed: one by one, and as a file
FILE_BATCH = 4096
Part = tuple[SteppedNetwork, ExitPolicy, list[Instance]]


def measure_options(
    options: Sequence[Option],
    exits: Archive,
    plain: Mapping[Plain, Archive],
    instances: Sequence[Instance],
    repeats: int = 3,
    time_budget: float = 120,
) -> dict[str, Costs]:
    """
    Times the first seed's networks in turns, on the samples that the options' `right` is about. Distilled networks are
    as fast as plain ones, and not timed. After `time_budget` seconds of each way no further repeat begins.
    """
    config = exits.config.as_dict(quiet=True)
    pad_token_id = exits.validation_dataset_reader.tokenizer.pad_token_id
    timed = [one for one in options if one.kind != "plain" or not one.members[0].distilled]
    found = {}
    for way, limit in WAYS.items():
        some = instances[:limit]
        cases = {}
        for one in timed:
            parts = [
                (Single() if way == "single" else build_file_engine(config), *part)
                for part in parts_of(one, exits, plain, some)
            ]
            cases[one.key] = lambda parts=parts: run(parts, pad_token_id)
        device = exits.model.device
        timings = measure(cases, repeats, device, time_budget=time_budget, description=f"measuring, {way}")
        each = {key: timing.median / len(some) for key, timing in timings.items()}
        networks = {one.members[0].layers: each.pop(one.key) for one in timed if one.kind == "plain"}
        found[way] = Costs(networks, each)
    return found


def parts_of(one: Option, exits: Archive, plain: Mapping[Plain, Archive], instances: Sequence[Instance]) -> list[Part]:
    """The networks that an option runs, and the samples that each of them gets; of a cascade those that go on."""
    if one.kind == "exits":
        return [(exits.model.exit_network, one.fitted[0].policy, list(instances))]
    exit_of = one.fitted[0].exits.tolist()
    return [
        (plain[member].model.exit_network, Final(), [one for one, taken in zip(instances, exit_of) if taken >= number])
        for number, member in enumerate(one.members, 1)
    ]


def run(parts: Sequence[tuple[Engine, Any, ExitPolicy, list[Instance]]], pad_token_id: int) -> Iterator[Any]:
    for engine, network, policy, instances in parts:
        yield from engine.run(network, policy, ragged_parts(instances, pad_token_id, FILE_BATCH))


@dataclass
class Costs:
    """Of a sample, in layers or in seconds measured one way: of plain networks by depth, of other options by key."""

    plain: Mapping[int, float]
    options: Mapping[str, float]

    def of(self, option: Option) -> float:
        return self.plain[option.members[0].layers] if option.kind == "plain" else self.options[option.key]


@dataclass
class Verdict:
    """What to ship at a speed."""

    speed: float
    ships_exits: bool
    ship: Option
    exits: Option | None  # the rule that was best at this speed on held-out data; `None` if none reaches it
    alternative: Alternative  # the plain networks or the cascade that were best at this speed on held-out data
    difference: Difference | None  # exits less the alternative at equal cost

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

    def to_json(self) -> dict[str, Any]:
        return {
            "speed": self.speed,
            "ship": self.ship.key,
            "ships_exits": self.ships_exits,
            "exits": self.exits and self.exits.key,
            "alternative": self.alternative.name,
            "difference": self.difference and self.difference.to_json(),
            "sentence": self.sentence,
        }


def judge(
    networks: Networks,
    options: Sequence[Option],
    chosen: Mapping[float, tuple[Option | None, Alternative]],
    seconds: Mapping[str, Costs],
    by: str = LAYERS,
) -> list[Verdict]:
    """
    Sets the differences and measured speeds of the options, and decides: exits are shipped where they are better than
    the alternative at equal cost. Within noise the simpler is: a plain network before exits, exits before a cascade.
    `options` and `chosen` are those of `choose_options`; equal cost means `by`: layers, or a key of `seconds`.
    """
    full = next(one for one in options if one.members == (networks.full,))
    of_rules = {one.key: one.cost for one in options}
    units = {LAYERS: Costs({one.layers: one.layers for one in networks.plain}, of_rules), **seconds}
    for one in options:
        if one is not full:
            one.against_full = crossed_difference(one.right, full.right)
        one.measured |= {way: found.of(full) / found.of(one) for way, found in seconds.items()}
    verdicts = []
    for speed, (exits, alternative) in chosen.items():
        difference = None
        if exits is not None:

            def from_other(other: Alternative, unit: str, exits: Option = exits, speed: float = speed) -> Difference:
                costs = units[unit]
                # A rule above the requested speed is compared with networks at the requested speed.
                cost = max(costs.of(exits), costs.of(full) / speed)
                return crossed_difference(exits.right, networks.right_at(other, cost, "reported", costs.plain))

            exits.against_plain = {unit: from_other(alternative, unit) for unit in units}
            difference = exits.against_plain[by]
            if alternative.is_cascade and difference.within_noise:
                plain = best_alternative(networks, networks.alternatives(()), networks.depth / speed)
                from_plain = from_other(plain, by)
                if from_plain.within_noise or from_plain.difference < 0:
                    alternative, difference = plain, from_plain
        ships_exits = difference is not None and (
            alternative.is_cascade if difference.within_noise else difference.difference > 0
        )
        ship = exits if ships_exits and exits is not None else shipped(options, alternative, speed)
        verdicts.append(Verdict(speed, ships_exits, ship, exits, alternative, difference))
    return verdicts


def shipped(options: Sequence[Option], alternative: Alternative, speed: float) -> Option:
    """Of the options that reach the speed the cascade, or the deepest plain network; if none does, the fastest."""
    own = [one for one in options if one.kind == "plain" and one.members[0] in alternative.members]
    cascades = [one for one in options if one.kind == "cascade" and one.fitted_for == speed]
    candidates = (alternative.is_cascade and cascades) or own
    fast = [one for one in candidates if one.layer_speedup >= REACHED * speed]
    return max(fast, key=lambda one: one.members[0].layers) if fast else max(own, key=lambda one: one.layer_speedup)


def headline(verdicts: Sequence[Verdict]) -> str:
    """The answer in one sentence."""
    better = listed([f"{one.speed:g}x" for one in verdicts if one.ships_exits and not one.is_tie])
    tied = listed([f"{one.speed:g}x" for one in verdicts if one.ships_exits and one.is_tie])
    others = listed([f"the {one.ship.name} at {one.speed:g}x" for one in verdicts if not one.ships_exits])
    if not better and not tied:
        return f"Early exit is not worth it here: ship {others}."
    parts = [f"worth it here at {better}"] if better else []
    parts += [f"as good as a cascade of networks at {tied}"] if tied else []
    return f"Early exit is {' and '.join(parts)}{f'; else ship {others}' if others else ''}."


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + "".join(parts[-1:])
