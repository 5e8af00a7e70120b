from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.policy_files import load_policies
from beem_plugin.comparison.policy_grid import Quantiles, describe, expand


def configs(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [setting.config for setting in expand(block)]


def test_a_block_without_grids_is_one_setting() -> None:
    block = {"type": "beem", "weights": [1, 2, 3], "thresholds": {"type": "error_rate", "grid": [0.5, 0.7]}}
    (setting,) = expand(block)
    assert setting.config == block and setting.swept == {}


def test_a_list_where_the_constructor_takes_a_number_is_a_sweep() -> None:
    assert configs({"type": "patience", "patience": [2, 3]}) == [
        {"type": "patience", "patience": 2},
        {"type": "patience", "patience": 3},
    ]
    both = configs({"type": "voting", "exponent": [0, 1], "min_exit": [1, 2], "thresholds": 0.5})
    assert [(block["exponent"], block["min_exit"]) for block in both] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_list_of_thresholds_stays_one_an_exit() -> None:
    assert len(expand({"type": "margin", "thresholds": [0.1, 0.2]})) == 1
    assert len(expand({"type": "cascaded_ensemble", "weights": [[1], [1, 1]], "thresholds": 0.5})) == 1


def test_grids_may_stand_anywhere() -> None:
    assert [c["thresholds"] for c in configs({"type": "margin", "thresholds": {"linspace": [0, 1, 3]}})] == [0, 0.5, 1]
    grid = {"grid": [0.5, [0.1, 0.2], {"type": "budget", "speedup": [1.5, 2]}]}
    assert [c["thresholds"] for c in configs({"type": "margin", "thresholds": grid})] == [
        0.5,
        [0.1, 0.2],
        {"type": "budget", "speedup": 1.5},
        {"type": "budget", "speedup": 2},
    ]
    inside = {"type": "margin", "thresholds": [{"grid": [0.1, 0.2]}, 0.5]}
    assert [c["thresholds"] for c in configs(inside)] == [[0.1, 0.5], [0.2, 0.5]]
    wrapped = {
        "type": "calibrated",
        "calibration": ["temperature", "vector"],
        "policy": {"type": "patience", "patience": [1, 2]},
    }
    assert len(expand(wrapped)) == 4


def test_what_moves_along_the_curve_is_told_from_what_makes_another_rule() -> None:
    settings = expand(
        {"type": "beem", "weights": {"type": "cost", "scale": [0.1, 0.2]}, "thresholds": {"grid": [1, 2]}}
    )
    assert [setting.apart for setting in settings] == [{"weights.scale": 0.1}] * 2 + [{"weights.scale": 0.2}] * 2
    assert [setting.along for setting in settings[:2]] == [{"thresholds": 1}, {"thresholds": 2}]
    (first, *_) = expand({"type": "confident_patience", "patience": [1, 2], "entropy_threshold": [0.1, 0.2]})
    assert first.apart == {"patience": 1} and first.along == {"entropy_threshold": 0.1}
    (inner, *_) = expand({"type": "calibrated", "policy": {"type": "margin", "thresholds": {"quantiles": 4}}})
    assert (
        inner.along == {"policy.thresholds": Quantiles(4)} and describe(inner.along) == "policy.thresholds=4 quantiles"
    )
    (budget, *_) = expand({"type": "margin", "thresholds": {"type": "budget", "speedup": [1.5, 2]}})
    assert budget.along == {"thresholds.speedup": 1.5}


@pytest.mark.parametrize(
    "block, message",
    [
        ({"type": "patience", "patience": []}, "patience: found an empty list"),
        ({"type": "patience", "patience": {"grid": []}}, r"patience\.grid: found \[\]"),
        ({"type": "margin", "thresholds": {"grid": "observed"}}, r"thresholds\.grid: found 'observed'.*`type`"),
        ({"type": "margin", "thresholds": {"linspace": [0, 1]}}, r"thresholds\.linspace: found \[0, 1\].*count"),
        ({"type": "margin", "thresholds": {"linspace": [0, 1, 2.5]}}, r"thresholds\.linspace"),
        ({"type": "margin", "thresholds": {"quantiles": 0}}, r"thresholds\.quantiles: found 0"),
        (
            {"type": "margin", "thresholds": {"grid": [1], "linspace": [0, 1, 2]}},
            "found grid and linspace",
        ),
        ({"type": "patience", "patience": {"quantiles": 3}}, r"patience\.quantiles: .*allowed: for `thresholds`"),
        (
            {"type": "voting", "exponent": {"linspace": [0, 1, 1000]}, "thresholds": {"linspace": [0, 1, 1000]}},
            "100,000",
        ),
    ],
)
def test_errors_name_key_found_and_allowed(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        expand(block)


def test_files_of_variants(tmp_path: Path) -> None:
    named, listed = tmp_path / "named.jsonnet", tmp_path / "listed.json"
    named.write_text("{calm: {type: 'margin', thresholds: 0.5}, pabee: {type: 'patience', patience: [1, 2]}}")
    listed.write_text(json.dumps([{"type": "patience", "patience": 1}, {"type": "patience", "patience": 2}]))
    variants = load_policies([], [str(named), str(listed)], "")
    assert [variant.name for variant in variants] == ["calm", "pabee", "patience", "patience (2)"]
    assert [variant.is_sweep for variant in variants] == [False, True, False, False]
    changed = load_policies([], [str(listed)], '{"patience": 4}')
    assert [variant.settings[0].config["patience"] for variant in changed] == [4, 4]
    (published,) = load_policies(["beem-a"], [], '{"thresholds": 2}')
    assert published.settings[0].config == {"type": "beem", "weights": {"type": "accuracy"}, "thresholds": 2}
    block = "{type: 'margin', thresholds: 0.5 / 2}"
    given, final = load_policies([block, "final"], [], "")
    assert given.settings[0].config == {"type": "margin", "thresholds": 0.25}
    assert (given.name, final.name) == (block, "final")


def test_files_of_one_name_go_by_their_folders(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.json").write_text('{"type": "final"}')
        paths.append(str(tmp_path / folder / "p.json"))
    assert [variant.name for variant in load_policies(paths, [], "")] == ["a/p", "b/p"]


@pytest.mark.parametrize(
    "content, message",
    [
        ({"type": "final"}, "found one policy block.*--policy"),
        ([1], "0: found 1 .*allowed: a policy block"),
        ({}, "found {} .*allowed: {name: block"),
        ([], r"found \[\] .*allowed: {name: block"),
        ({"a": {"type": "patience", "patience": []}}, "a: patience: found an empty list"),
    ],
)
def test_bad_files_of_variants(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "v.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=f"v.json: {message}"):
        load_policies([], [str(tmp_path / "v.json")], "")
