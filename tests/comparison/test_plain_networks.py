"""Plain networks made of configs with exits, and cascades made of their outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import load_config_dict
from beem_plugin.comparison.plain_networks import cascade_trace, distilled_config, full_depth, mixture, plain_config
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.exits.policies import MaxProbability
from tests.tiny_project import CONFIGS

BERT = {"config": {"model_type": "bert", "num_hidden_layers": 5}}


def shipped(name: str) -> dict[str, Any]:
    return load_config_dict(CONFIGS / f"{name}.jsonnet", ext_vars={"GLUE_DIR": "data", "BEEM_BACKBONE": "a/model"})


def test_it_is_the_network_that_the_preset_describes() -> None:
    found, preset = plain_config(shipped("rte_beem"), 9), shipped("rte_9_layers")
    assert Variant("found", found, "").trained_part["model"] == Variant("preset", preset, "").trained_part["model"]


def test_only_what_exits_have_is_left_out() -> None:
    base = shipped("rte_recommended")
    found = plain_config(base, 4)
    encoder = found["model"]["encoder"]
    assert encoder["exit_layers"] == [4] and encoder["backbone"]["num_layers"] == 4
    assert encoder["pooler"] == base["model"]["encoder"]["pooler"] and not {"branch", "fork"} & set(encoder)
    assert found["trainer"]["optimizer"]["heads_lr_factor"] == 4, "the help that exits get"
    assert found["trainer"]["callbacks"] == [] and base["trainer"]["callbacks"], "and the base is not changed"


def test_stages_become_one_training() -> None:
    staged = shipped("rte_deebert")
    found = plain_config(staged, 2)["trainer"]
    assert "stages" not in found and found["type"] == "gradient_descent"
    assert found["num_epochs"] == staged["trainer"]["num_epochs"]
    del staged["trainer"]["num_epochs"]
    staged["trainer"]["stages"][0]["num_epochs"] = 7
    assert plain_config(staged, 2)["trainer"]["num_epochs"] == 7


def test_depth_and_teacher() -> None:
    config = {"model": {"type": "x", "encoder": {"backbone": {**BERT, "num_layers": 2}}}}
    assert full_depth(config) == 5
    taught = distilled_config(plain_config(config, 3), "runs/full")["model"]["objective"]
    assert taught == {"type": "distilled", "teacher": "runs/full", "objective": {"type": "final_exit"}}
    with pytest.raises(ConfigurationError, match="model.encoder.backbone: found .* allowed: a block with a backbone"):
        full_depth({"model": {"type": "multi_exit_captioner", "decoder": {}}})


def one_exit(right: list[bool], confidence: list[float], layers: int, **more: Any) -> ExitTrace:
    """Label 0 everywhere; the given probability of what is predicted."""
    logits = torch.tensor(confidence).logit()
    sign = torch.tensor(right).float() * 2 - 1
    values = torch.stack([sign * logits, torch.zeros(len(right))], 1).unsqueeze(1)
    return ExitTrace(values, torch.zeros(len(right), dtype=torch.int64), meta={"exit_layers": [layers]}, **more)


def test_a_cascade_costs_all_networks_so_far() -> None:
    small = one_exit([True, False, True, False], [0.9, 0.6, 0.8, 0.95], 2)
    large = one_exit([True, True, False, True], [0.9, 0.9, 0.9, 0.9], 6)
    cascade = cascade_trace([small, large])
    assert cascade.exit_layers == [2, 6] and cascade.exit_costs == [2, 8]
    policy = MaxProbability(thresholds=0.85)
    decisions = replay(policy, cascade)
    assert decisions.exits.tolist() == [1, 2, 2, 1]
    assert (decisions.predictions == cascade.labels).tolist() == [True, True, False, False]
    assert cascade.costs_under(policy) == [2, 8]


def test_members_of_a_cascade_see_the_same_samples() -> None:
    small, large = one_exit([True, True], [0.9, 0.9], 2), one_exit([True], [0.9], 6)
    with pytest.raises(ConfigurationError, match=r"network of 6 layers: found other samples \(1\)"):
        cascade_trace([small, large])
    named = [one_exit([True], [0.9], layers, ids=[name]) for layers, name in ((2, "a"), (6, "b"))]
    with pytest.raises(ConfigurationError, match="allowed: the same samples in the same order"):
        cascade_trace(named)
    with pytest.raises(ConfigurationError, match=r"found networks of \[6, 2\] layers"):
        cascade_trace([large, small])


def test_between_two_networks_they_take_turns() -> None:
    right = [np.array([1.0, 0.0]), np.array([1.0, 1.0])].__getitem__
    assert mixture([2, 6], right, 3).tolist() == [1.0, 0.25]
    assert mixture([2, 6], right, 1).tolist() == [1.0, 0.0] and mixture([2, 6], right, 9).tolist() == [1.0, 1.0]
