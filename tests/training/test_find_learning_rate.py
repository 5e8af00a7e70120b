"""`allennlp find-lr`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.find_learning_rate import find_learning_rate, summary
from tests.tiny_project import run
from tests.training.configs import config, params
from tests.training.staged_configs import staged

GROUPS: dict[str, Any] = {"type": "sgd", "lr": 0.2, "parameter_groups": [[["classifier"], {"lr": 0.02}]]}


def test_the_rate_rises_over_epochs_and_the_losses_are_drawn(tmp_path: Path) -> None:
    block = config(
        trainer__optimizer=GROUPS,
        trainer__learning_rate_scheduler={"type": "linear_with_warmup"},
        trainer__callbacks=["tensorboard"],
    )
    (tmp_path / "c.json").write_text(json.dumps(block))
    command = ["find-lr", str(tmp_path / "c.json"), "-s", str(tmp_path / "lr"), "--num-batches", "21"]
    done = run(*command, "--start-lr", "1e-3", "--end-lr", "1e-1")
    found = json.loads((tmp_path / "lr" / "lr-losses.json").read_text())
    rates = found["learning_rates"]
    assert len(rates) == len(found["losses"]) == 21  # of epochs with 5 batches
    assert rates[0] == pytest.approx(1e-3) and rates[10] == pytest.approx(1e-2) and rates[20] == pytest.approx(1e-1)
    assert (tmp_path / "lr" / "lr-losses.png").read_bytes().startswith(b"\x89PNG") and "falls fastest at" in done.stdout
    assert not (tmp_path / "lr" / "log").exists()
    refused = run(*command, check=False)
    assert refused.returncode == 1 and "is not empty" in refused.stderr
    run(*command, "--force", "--linear", "--start-lr", "1e-3", "--end-lr", "1e-1")
    rates = json.loads((tmp_path / "lr" / "lr-losses.json").read_text())["learning_rates"]
    assert rates[10] == pytest.approx(0.0505)


def test_it_stops_where_the_loss_rises(tmp_path: Path) -> None:
    high = params(trainer__optimizer__type="sgd")
    found = find_learning_rate(high, tmp_path / "a", 1e-3, 1e4, 60, stopping_factor=2.0)
    assert 10 < len(found["losses"]) < 60 and max(found["losses"]) <= 2 * min(found["losses"])
    with pytest.raises(ConfigurationError, match="--num-batches: found 5, allowed: above 10"):
        find_learning_rate(high, tmp_path / "b", num_batches=5)
    with pytest.raises(ConfigurationError, match="--start-lr, --end-lr: found 1, 0.1, allowed"):
        find_learning_rate(high, tmp_path / "b", 1, 0.1)


def test_the_first_of_several_stages_is_searched(tmp_path: Path) -> None:
    found = find_learning_rate(
        staged([{"name": "one", "objective": {"type": "final_exit"}}, {"name": "two"}]),
        tmp_path / "run",
        1e-3,
        1e-1,
        12,
    )
    assert len(found["losses"]) == 12


def test_the_steepest_rate_is_that_of_the_largest_slope() -> None:
    rates = [10.0**power for power in range(-6, 1)]
    found = summary(rates, [4.0, 4.0, 3.0, 1.0, 0.9, 5.0, 9.0])
    assert found["smoothed_losses"][1] == pytest.approx(4.0)
    assert found["smoothed_losses"][2] == pytest.approx((0.98**2 * 4 + 0.98 * 4 + 3) / (0.98**2 + 0.98 + 1))
    assert found["steepest"] == 1e-3 and found["lowest"] == 1e-2
