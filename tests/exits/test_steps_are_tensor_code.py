"""Steps of all policies are traced without data and compiled: no branch on a value, no state outside of `ExitState`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from tests.exits.every_policy import SIGNALS, every_policy

EXITS, LABELS = 4, 3


def inputs(samples: int, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, LABELS, generator=generator)
    extra = {name: torch.rand(samples, generator=generator) for name in SIGNALS}
    return logits, {**extra, "position": (20 * extra["position"]).floor()}


def step(policy: ExitPolicy, number: int, logits: Tensor, extra: dict[str, Tensor], state: dict[str, Tensor]) -> Any:
    signals = ExitSignals(logits, extra)
    leaves, after = policy.step(number, signals, ExitState(**state))
    score = policy.score(after)
    outputs = {"leaves": leaves, "output": policy.output(number, signals, after)}
    outputs |= {"prediction": policy.prediction(number, signals, after)}
    return outputs | ({} if score is None else {"score": score}), after.tensors


@pytest.mark.parametrize("policy", every_policy(EXITS, LABELS), ids=lambda policy: policy.registered_name)
def test_a_step_traced_without_data_decides_as_the_step_itself(policy: ExitPolicy) -> None:
    traced_samples, samples = 5, 40
    traced_state = policy.start(traced_samples, EXITS).tensors
    state = policy.start(samples, EXITS).tensors
    for number in range(1, EXITS + 1):
        example = (*inputs(traced_samples, number), traced_state)
        # Symbolic tensors have neither values nor a fixed batch size.
        graph = make_fx(lambda *given, number=number: step(policy, number, *given), tracing_mode="symbolic")(*example)
        given = (*inputs(samples, 10 + number), state)
        found, found_state = graph(*given)
        expected, expected_state = step(policy, number, *given)
        assert list(found) == list(expected) and list(found_state) == list(expected_state)
        for name, value in {**expected, **expected_state}.items():
            assert torch.equal({**found, **found_state}[name], value), (number, name)
        traced_state = step(policy, number, *example)[1]
        state = expected_state


def test_some_samples_exit_early_and_some_do_not() -> None:
    for policy in every_policy(EXITS, LABELS):
        state = policy.start(400, EXITS).tensors
        early = torch.zeros(400, dtype=torch.bool)
        for number in range(1, EXITS):
            outputs, state = step(policy, number, *inputs(400, number), state)
            early |= outputs["leaves"]
        if policy.registered_name not in ("final", "fixed_exit"):
            assert 0 < int(early.sum()) < 400, policy.to_config()
