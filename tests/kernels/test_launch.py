"""Compiled kernels are cached by the properties of their arguments that Triton specialises on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from beem_plugin.kernels import launch as launch_module
from beem_plugin.kernels.launch import launch


class Compiled:
    def __init__(self, calls: list[Any], takes_constants: bool) -> None:
        self.calls, self.takes_constants = calls, takes_constants

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*values: Any) -> None:
            if not self.takes_constants:
                raise TypeError("function takes exactly 3 arguments")
            self.calls.append(("again", grid, values))

        return run


class Kernel:
    """Stands for a Triton function: returns the compiled kernel."""

    def __init__(self, compiles: bool = True, takes_constants: bool = True) -> None:
        self.calls: list[Any] = []
        self.compiled = Compiled(self.calls, takes_constants) if compiles else None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def run(*values: Any, num_warps: int, **constants: Any) -> Any:
            self.calls.append(("compile", grid, values, num_warps, constants))
            return self.compiled

        return run

    @property
    def calls_by_name(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_compiled", {})


def test_arguments_of_one_specialization_compile_once() -> None:
    kernel, tensor = Kernel(), torch.zeros(64)
    for count in (5, 7, 9):
        launch(kernel, (count,), tensor, count, 0.5, BLOCK=16)
    assert kernel.calls == [
        ("compile", (5,), (tensor, 5, 0.5), 4, {"BLOCK": 16}),
        ("again", (7, 1, 1), (tensor, 7, 0.5, 16)),
        ("again", (9, 1, 1), (tensor, 9, 0.5, 16)),
    ]


def test_another_specialization_compiles_again() -> None:
    kernel, tensor = Kernel(), torch.zeros(64)
    launch(kernel, (2, 3), tensor, 5, 0.5, BLOCK=16)
    others: list[tuple[Any, ...]] = [
        (tensor.half(), 5, 0.5, 16, 4),
        (tensor[1:], 5, 0.5, 16, 4),  # not aligned to 16 bytes
        (tensor, 1, 0.5, 16, 4),
        (tensor, 32, 0.5, 16, 4),
        (tensor, 2**40 + 1, 0.5, 16, 4),
        (tensor, 5, 0.5, 32, 4),
        (tensor, 5, 0.5, 16, 8),
    ]
    for first, count, number, block, warps in others:
        launch(kernel, (2, 3), first, count, number, num_warps=warps, BLOCK=block)
    launch(Kernel(), (2, 3), tensor, 5, 0.5, BLOCK=16)
    assert kernel.calls_by_name == ["compile"] * 8
    launch(kernel, (2, 3), tensor, 6, 0.7, BLOCK=16)
    assert kernel.calls_by_name[-1] == "again"


def test_without_a_compiled_kernel_or_with_another_call_convention_triton_launches() -> None:
    for kernel in (Kernel(compiles=False), Kernel(takes_constants=False)):
        for _ in range(3):
            launch(kernel, (2,), torch.zeros(64), 5, BLOCK=16)
        assert kernel.calls_by_name == ["compile"] * 3
