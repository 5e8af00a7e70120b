"""Exits by the area under the curve, and depth by one standard error."""

from __future__ import annotations

import itertools

import pytest
import torch

from beem_plugin.calibration.curves import curve_of
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.exit_choice import choose_depth, choose_exits
from beem_plugin.exits.policies import MaxProbability


def trace_of(skill: list[float], samples: int = 300, **meta: object) -> ExitTrace:
    """Exits whose logits hold the label with these strengths."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (samples,), generator=generator)
    signal = torch.nn.functional.one_hot(labels, 2).unsqueeze(1) * torch.tensor(skill).view(1, -1, 1)
    noise = torch.randn(samples, len(skill), 2, generator=generator)
    return ExitTrace(signal + noise, labels, meta=meta)


def test_useful_exits_are_chosen_and_all_sets_are_ranked() -> None:
    trace = trace_of([0.0, 0.0, 3.0, 0.0, 0.0, 4.0], exit_layers=[2, 4, 6, 8, 10, 12])
    found = choose_exits(trace, 2, speeds=(1.0, 2.0))
    assert found[0].exit_layers == [6, 12]
    # With an exit after half of the layers or later 2x is reached from there on only.
    assert {tuple(choice.exit_layers) for choice in found} == {(2, 12), (4, 12), (6, 12)}
    assert [choice.area for choice in found] == sorted((choice.area for choice in found), reverse=True)


def test_areas_are_those_of_networks_with_these_exits_alone() -> None:
    trace = trace_of([1.0, 1.5, 2.0, 3.0, 3.5])
    found = {tuple(choice.exit_layers): choice.area for choice in choose_exits(trace, 3)}
    for early in itertools.combinations(range(1, 5), 2):
        layers = [*early, 5]
        part = ExitTrace(trace.logits[:, [layer - 1 for layer in layers]], trace.labels, meta={"exit_layers": layers})
        expected = curve_of(MaxProbability(), part).area()
        assert found.get(tuple(layers)) == (None if expected is None else pytest.approx(expected))
    assert (1, 2, 5) in found


def test_only_the_branches_of_chosen_exits_cost() -> None:
    """Exit 1 is dear and exits 2 and 3 are equal: a set without exit 1 does not pay for its branch."""
    skill = [1.0, 1.0, 1.0, 9.0]
    plain = {tuple(c.exit_layers): c.area for c in choose_exits(trace_of(skill), 2, speeds=(1.0, 1.3))}
    dear = trace_of(skill, exit_layers=[1, 2, 3, 4], exit_costs=[1.5, 2.5, 3.5, 4.5])
    costly = {tuple(c.exit_layers): c.area for c in choose_exits(dear, 2, speeds=(1.0, 1.3))}
    assert costly[2, 4] == pytest.approx(plain[2, 4]) and costly[1, 4] < plain[1, 4]


def test_branches_of_all_chosen_exits_so_far_cost() -> None:
    layers, costs = [1, 2, 3, 4], [1.5, 2.75, 4.25, 5.5]  # branches of 0.5, 0.25, 0.5 and 0.25 layers
    trace = trace_of([1.0, 2.0, 2.0, 3.0], exit_layers=layers, exit_costs=costs)
    found = {tuple(one.exit_layers): one.area for one in choose_exits(trace, 3, speeds=(1.0, 1.3))}
    meta = {"exit_layers": [1, 3, 4], "exit_costs": [1.5, 4.0, 5.25]}
    part = ExitTrace(trace.logits[:, [0, 2, 3]], trace.labels, meta=meta)
    assert found[1, 3, 4] == pytest.approx(curve_of(MaxProbability(), part).area(1.0, 1.3))


def test_depth_by_one_standard_error() -> None:
    def right(count: int) -> torch.Tensor:
        return torch.arange(400) < count

    # The best is 0.9 with a standard error of 0.015: 0.885 is enough, 0.8825 is not.
    assert choose_depth({4: right(300), 6: right(353), 8: right(354), 12: right(360)}) == 8
    assert choose_depth({4: right(300), 12: right(360), 6: right(355)}) == 6
    assert choose_depth({12: right(3)}) == 12


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_exits": 1}, "num_exits: found 1, allowed: 2 to 3"),
        ({"num_exits": 2, "speeds": (1.0, 9.0)}, "speeds: found 1 to 9, which no 2 exits reach"),
        ({"num_exits": 2, "policy": {"type": "fixed_exit", "exit": 1}}, "policy: found fixed_exit, allowed: a rule"),
    ],
)
def test_options_out_of_range_are_named(keys: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        choose_exits(trace_of([1.0, 2.0, 3.0]), **keys)


def test_labels_and_samples_are_needed() -> None:
    trace = trace_of([1.0, 2.0])
    trace.labels[0] = -1
    with pytest.raises(ConfigurationError, match="without class labels"):
        choose_exits(trace, 2)
    with pytest.raises(ConfigurationError, match="choose_depth: found no sample or different numbers"):
        choose_depth({4: torch.ones(3), 6: torch.ones(4)})
