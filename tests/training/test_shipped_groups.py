"""The shipped optimizer's parameter groups fit every family of encoders without a warning."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from beem_plugin.backbones import Backbone
from beem_plugin.common.params import evaluate_document
from beem_plugin.training.parameter_groups import make_parameter_groups
from tests.backbones.tiny_models import CONFIGS
from tests.tiny_project import CONFIGS as SHIPPED


@pytest.mark.parametrize("family", CONFIGS)
def test_biases_and_normalisations_have_no_weight_decay(
    family: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "groups.jsonnet"
    path.write_text(f"(import {json.dumps(str(SHIPPED / 'lib' / 'trainers.libsonnet'))}).adamw(1e-3)")
    groups = evaluate_document(path)["parameter_groups"]
    backbone = Backbone.from_params({"config": dict(CONFIGS[family])})
    named = list(backbone.named_parameters())
    caplog.clear()  # transformers remarks on tiny models
    with caplog.at_level(logging.WARNING):
        plain, decayed = make_parameter_groups(named, groups)
    assert not caplog.records and plain["weight_decay"] == 0
    spared = {id(parameter) for parameter in plain["params"]}
    for name, parameter in named:
        assert (id(parameter) in spared) == bool(re.search(r"bias|norm|\bln_", name.lower())), name
        # What has one dimension is a bias or a normalisation, by whatever name.
        assert parameter.dim() > 1 or id(parameter) in spared, name
    assert decayed["params"]
