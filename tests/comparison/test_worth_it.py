"""Both answers of `worth-it` on constructed results, and what they are made of."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.result import build
from beem_plugin.comparison.worth_it.networks import Alternative, Networks, Plain, Traces, right_at
from beem_plugin.comparison.worth_it.options import Rule, best_rule, choose_options
from beem_plugin.comparison.worth_it.result import WorthIt, trade_off
from beem_plugin.comparison.worth_it.run import chosen_on_held_out
from beem_plugin.comparison.worth_it.verdicts import Costs, Verdict, headline, judge
from beem_plugin.rendering.plots import plots_available

PLAIN = {4: 1.0, 6: 1.6, 8: 2.1, 12: 2.2}
RULES = {"confidence": {"type": "max_probability"}}


def trace_of(skill: list[float], layers: list[int], samples: int, seed: int) -> ExitTrace:
    """Exits whose logits hold the label with these strengths; what is hard is so for all networks."""
    fixed = torch.Generator().manual_seed(samples)
    labels = torch.randint(2, (samples,), generator=fixed)
    hard = torch.randn(samples, 1, 2, generator=fixed)
    own = 0.5 * torch.randn(samples, len(skill), 2, generator=torch.Generator().manual_seed(seed))
    signal = torch.nn.functional.one_hot(labels, 2).unsqueeze(1) * torch.tensor(skill).view(1, -1, 1)
    return ExitTrace(signal + hard + own, labels, meta={"exit_layers": layers})


def networks_of(skill: list[float], distilled: float | None = None, count: int = 2) -> Networks:
    seeds = itertools.count(1)

    def traces(skill: list[float], layers: list[int]) -> list[Traces]:
        return [Traces(*(trace_of(skill, layers, size, next(seeds)) for size in (300, 800))) for _ in range(count)]

    plain = {Plain(depth): traces([value], [depth]) for depth, value in PLAIN.items()}
    if distilled is not None:
        plain |= {Plain(depth, True): traces([PLAIN[depth] + distilled], [depth]) for depth in (4, 6, 8)}
    return Networks(12, traces(skill, [4, 6, 8]), plain)


def verdicts_of(networks: Networks, seconds: dict[str, Costs] | None = None, **options: object) -> list[Verdict]:
    return judge(networks, *choose_options(networks, RULES, (2.0, 3.0), **options), seconds or {})  # type: ignore[arg-type]


def test_yes_where_exits_are_better_at_equal_cost() -> None:
    found = verdicts_of(networks_of([1.7, 2.3, 2.4]))
    assert all(verdict.ships_exits and verdict.ship.kind == "exits" for verdict in found)
    assert headline(found) == "Early exit is worth it here at 2x and 3x."
    difference = found[0].difference
    assert difference is not None and difference.difference > 0 and not difference.within_noise
    assert found[0].sentence.startswith("at 2x ship early exit with confidence (")
    assert "points above plain networks at equal cost (p 0.0" in found[0].sentence


def test_no_where_exits_are_worse() -> None:
    found = verdicts_of(networks_of([0.3, 0.6, 1.0]), cascades=[])
    assert [verdict.ship.name for verdict in found] == ["plain network of 6 layers", "plain network of 4 layers"]
    expected = "ship the plain network of 6 layers at 2x and the plain network of 4 layers at 3x."
    assert headline(found) == f"Early exit is not worth it here: {expected}"
    assert "points below plain networks at equal cost" in found[0].sentence


def test_within_noise_the_plain_network_is_shipped() -> None:
    found = verdicts_of(networks_of([1.0, 1.6, 2.1]), cascades=[])
    assert found[1].is_tie and not found[1].ships_exits and ", within noise" in found[1].sentence


def test_no_where_exits_do_not_get_there() -> None:
    networks = networks_of([1.7, 2.3, 2.4])
    networks.exits = [Traces(*(part_of(trace, [1, 2], [6, 8]) for trace in traces)) for traces in networks.exits]
    slow = verdicts_of(networks)[1]
    assert not slow.ships_exits and slow.exits is None and slow.difference is None
    assert slow.ship.layer_speedup == 3 and slow.sentence.endswith("early exit does not get there")


def part_of(trace: ExitTrace, columns: list[int], layers: list[int]) -> ExitTrace:
    return ExitTrace(trace.logits[:, columns], trace.labels, meta={"exit_layers": layers})


def test_distilled_networks_and_cascades_are_alternatives() -> None:
    networks = networks_of([1.0, 1.6, 2.1], distilled=1.0)
    names = [one.name for one in networks.alternatives([(4, 8)])]
    assert names == [
        "plain networks",
        "cascade of plain networks of 4 and 8 layers",
        "distilled networks",
        "cascade of distilled networks of 4 and 8 layers",
    ]
    assert len(networks.alternatives()) == 2 + 2 * 6
    found = verdicts_of(networks)
    assert not any(verdict.ships_exits for verdict in found)
    assert all("distilled" in verdict.alternative.name for verdict in found)
    assert found[1].ship.name == "distilled network of 4 layers"


def tie_with(cascade: tuple[int, int], changed: int, skill: float) -> Verdict:
    """What is judged at 2x of exits that are right where the cascade is; one plain network has another skill."""
    networks = networks_of([1.0, 1.6, 2.1])
    made = Traces(*(trace_of([skill], [changed], size, 90 + size) for size in (300, 800)))
    networks.plain[Plain(changed)] = [made, made]
    options, chosen = choose_options(networks, RULES, (2.0,), cascades=[cascade])
    exits, _ = chosen[2.0]
    assert exits is not None
    rival = Alternative(tuple(map(Plain, cascade)), is_cascade=True)
    exits.right = np.round(networks.right_at(rival, exits.cost, "reported"))
    (verdict,) = judge(networks, options, {2.0: (exits, rival)}, {})
    return verdict


def test_a_tie_with_a_cascade_is_one_for_exits() -> None:
    # With a poor network of six layers the cascade is better than plain networks.
    verdict = tie_with((4, 8), 6, 0.5)
    assert verdict.is_tie and verdict.ships_exits and verdict.sentence.endswith("within noise and in one network")
    assert headline([verdict]) == "Early exit is as good as a cascade of networks at 2x."


def test_exits_that_tie_with_plain_networks_are_not_shipped_for_a_cascade() -> None:
    verdict = tie_with((6, 8), 8, 1.6)
    assert verdict.is_tie and not verdict.ships_exits
    assert verdict.alternative.name == "plain networks" and verdict.ship.name == "plain network of 6 layers"


def test_equal_seconds_can_decide_otherwise() -> None:
    networks = networks_of([1.4, 1.9, 2.0], count=3)
    options, chosen = choose_options(networks, RULES, (2.0,), cascades=[])
    plain = {depth: depth / 12 for depth in PLAIN}
    exits = next(one for one in options if one.kind == "exits")
    # As dear as twelve layers, whose accuracy exits at half of the layers do not reach.
    seconds = {"file": Costs(plain, {exits.key: 1.0})}
    by_layers, by_seconds = (judge(networks, options, chosen, seconds, by)[0] for by in ("layers", "file"))
    assert by_layers.ships_exits and not by_seconds.ships_exits
    assert exits.measured == {"file": 1.0} and options[1].measured["file"] == pytest.approx(1.5)
    full = networks.right_at(Alternative((Plain(12),)), 12, "reported")
    assert exits.against_plain["file"].difference == pytest.approx(float((exits.right - full).mean()))


def test_exits_are_compared_at_their_own_cost_but_not_above_the_requested_speed() -> None:
    networks = networks_of([1.4, 1.9, 2.0])
    options, chosen = choose_options(networks, RULES, (2.0,), cascades=[])
    exits, alternative = chosen[2.0]
    assert exits is not None
    for own, cost in ((7.0, 7.0), (4.5, 6.0)):
        exits.fitted = [one._replace(cost=own) for one in exits.fitted]
        judge(networks, options, chosen, {})
        plain = networks.right_at(alternative, cost, "reported")
        assert exits.against_plain["layers"].difference == pytest.approx(float((exits.right - plain).mean()))


def test_accuracy_at_a_cost_mixes_two_thresholds() -> None:
    trace = trace_of([1.0, 2.0, 3.0], [2, 4, 8], 200, 5)
    policy = build({"type": "max_probability", "thresholds": "never"}, trace)
    table = policy.scores(trace)
    thresholds = [math.inf, *sorted(table.scores[:, :-1].flatten().tolist(), reverse=True)]
    settings = []
    for threshold in thresholds:
        one = build({"type": "max_probability", "thresholds": "never" if threshold > 1 else threshold}, trace)
        decisions = replay(one, trace)
        cost = float(torch.tensor([2.0, 4.0, 8.0])[decisions.exits - 1].mean())
        settings.append((cost, (decisions.predictions == trace.labels).double().numpy()))
    dear = min((one for one in settings if one[0] > 5.005), key=lambda one: one[0])
    cheap = max((one for one in settings if one[0] <= 5.005), key=lambda one: one[0])
    share = (5.005 - cheap[0]) / (dear[0] - cheap[0])
    expected = share * dear[1] + (1 - share) * cheap[1]
    np.testing.assert_allclose(right_at(table, [2, 4, 8], 5.005), expected)
    np.testing.assert_allclose(right_at(table, [2, 4, 8], 99), settings[0][1])
    np.testing.assert_allclose(right_at(table, [2, 4, 8], 1), settings[-1][1])


def test_rules_are_chosen_on_held_out_data() -> None:
    networks = networks_of([1.0, 1.6, 2.1])
    rules = {
        "random": Rule({"type": "beem", "weights": [1.0, 1.0, 1.0]}, networks.exits),
        "never": Rule({"type": "final"}, networks.exits),
    }
    assert best_rule(rules, 6.0) == "random", "full depth of these exits is eight layers"
    assert best_rule({"never": rules["never"]}, 6.0) is None
    fitted = rules["random"].fit(6.0)
    assert [one.right.shape for one in fitted] == [(800,), (800,)] and all(one.cost <= 8 for one in fitted)


def test_the_result_is_data_a_table_and_a_plot() -> None:
    networks = networks_of([1.7, 2.3, 2.4])
    options, chosen = choose_options(networks, RULES, (2.0, 3.0))
    verdicts = judge(networks, options, chosen, {})
    result = WorthIt(options, verdicts, "layers", 2, 800, "test", "holdout", choice={"depth": 8, "exits": [4, 6, 8]})
    content = json.loads(json.dumps(result.to_json()))
    assert content["answer"] == headline(verdicts)
    assert [one["speed"] for one in content["verdicts"]] == [2.0, 3.0]
    full = content["options"][0]
    assert full["name"] == "plain network of 12 layers" and full["against_full_depth"] is None
    assert full["accuracy"] == pytest.approx(float(options[0].right.mean()))
    table = result.table()
    rows = dict(zip([one["name"] for one in content["options"]], table.to_records(), strict=True))
    assert rows["early exit with confidence, 2x"]["best at"] == "2x"
    assert table.notes[-1] == result.headline and any("8 layers, the smallest" in note for note in table.notes)
    if plots_available():
        axes = trade_off(result, networks).axes[0]
        lines = {line.get_label(): line for line in axes.get_lines()}
        plain = lines["plain networks"].get_ydata()
        assert plain[0] == pytest.approx(100 * options[0].accuracy) and "plain network of 12 layers" in lines


def test_more_seeds_on_the_same_samples_do_not_shrink_the_error_of_a_depth() -> None:
    def right(count: int) -> list[Traces]:
        sign = 2.0 * (torch.arange(400) < count) - 1
        trace = ExitTrace(torch.stack([sign, -sign], 1).unsqueeze(1), torch.zeros(400, dtype=torch.int64))
        return [Traces(trace, trace)] * 4

    # 0.9 with a standard error of 0.015 over the samples, however many networks are right on the same ones.
    networks = Networks(12, right(360), {Plain(6): right(353), Plain(8): right(354), Plain(12): right(360)})
    assert chosen_on_held_out(networks)["depth"] == 8
