"""The engine for inputs of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from beem_plugin.execution import Auto, DepthPools, Engine, Single
from tests.execution.worlds import Wanted, World, check, make_batches


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that ran, in order."""
    names: list[str] = []

    def noted(kind: type[Engine]) -> Any:
        run = kind.run

        def noting(self: Engine, *args: Any) -> Iterator[Any]:
            names.append(kind.__name__)
            return run(self, *args)

        return noting

    for kind in (Single, DepthPools):
        monkeypatch.setattr(kind, "run", noted(kind))
    return names


def run(engine: Auto, world: World, samples: int) -> None:
    """Checks exits and outputs, too."""
    check(engine, world, Wanted(), make_batches(samples, 2, seed=samples))


def test_the_number_of_samples_decides(world: World, used: list[str]) -> None:
    engine = Auto()
    for samples in (1, 2, 7, 1):
        run(engine, world, samples)
    assert used == ["Single", "DepthPools", "DepthPools", "Single"]
    run(Auto(few=7), world, 7)
    run(Auto(few=0), world, 1)
    assert used[4:] == ["Single", "DepthPools"]


def test_on_a_gpu_graphs_are_captured_for_small_inputs_that_recur(
    world: World, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beem_plugin.execution.auto.device_of", lambda network: torch.device("cuda"))
    engine = Auto()
    for samples in (3, 3, 64, 65, 3, 3):
        run(engine, world, samples)
    assert used == ["DepthPools", "Single", "Single", "DepthPools", "DepthPools", "Single"]


def test_capturing_is_turned_off_for_single(world: World) -> None:
    engine = Engine.from_params({"type": "auto", "capture": False})
    assert isinstance(engine, Auto)
    run(engine, world, 1)
    assert not engine.single.capture
