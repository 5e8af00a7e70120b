"""A training that is interrupted and recovered, beside one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics

NEVER = 100


def interrupted_and_recovered(folder: Path, interrupt: int = 2, **changes: Any) -> None:
    """Trains twice, the second time with Ctrl-C in epoch `interrupt`, and asserts that both end alike."""
    whole, again = folder / "whole", folder / "again"

    def with_interrupt(epoch: int) -> Any:
        return params(**changes, trainer__callbacks=[{"type": "interrupt", "epoch": epoch}])

    train_model(with_interrupt(NEVER), whole)
    with pytest.raises(KeyboardInterrupt):
        train_model(with_interrupt(interrupt), again)
    config = json.loads((again / "config.json").read_text())
    config["trainer"]["callbacks"][0]["epoch"] = NEVER
    (again / "config.json").write_text(json.dumps(config))
    train_model(with_interrupt(NEVER), again, recover=True)
    assert read_metrics(again) == read_metrics(whole)
    one, two = (torch.load(run / "best.th", weights_only=True) for run in (whole, again))
    assert all(torch.equal(one[key], two[key]) for key in one)
