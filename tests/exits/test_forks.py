"""Forks against gradients computed one reader at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.forks import Fork
from tests.objectives.tiny_model import tiny_batch, tiny_model


def gradients(seed: int = 0, rows: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(2, rows, 3, 5, generator=generator, dtype=torch.float64)
    made[1, 0] = -0.5 * made[0, 0] + 0.1 * made[1, 0]  # a conflict
    made[1, 1] = 0.5 * made[0, 1] + 0.1 * made[1, 1]  # none
    return made[0], made[1]


def by_fork(fork: Fork, from_exit: Tensor, from_above: Tensor, exit_number: int = 1, num_exits: int = 3) -> Tensor:
    """The gradient that reaches the hidden states when the two readers give these gradients."""
    hidden = torch.zeros_like(from_exit, requires_grad=True)
    for_exit, for_next = fork.split(hidden, exit_number, num_exits)
    ((for_exit * from_exit).sum() + (for_next * from_above).sum()).backward()
    assert hidden.grad is not None
    return hidden.grad


def test_forks_by_hand() -> None:
    g, h = gradients()
    torch.testing.assert_close(by_fork(Fork.from_params({"type": "sum"}), g, h), g + h)
    torch.testing.assert_close(by_fork(Fork.from_params({"type": "detached"}), g, h), g)
    scaled = Fork.from_params({"type": "scaled", "exit": 0.3, "above": 2.0})
    torch.testing.assert_close(by_fork(scaled, g, h), 0.3 * g + 2 * h)
    cut = Fork.from_params({"type": "scaled", "above": 0.0, "exits": [2]})
    torch.testing.assert_close(by_fork(cut, g, h, exit_number=2), g)
    torch.testing.assert_close(by_fork(cut, g, h, exit_number=1), g + h)
    with pytest.raises(ConfigurationError, match=r"fork.exits: found \[4\], allowed: 1 to 3"):
        Fork.from_params({"type": "scaled", "exits": [4]}).bind(3)
    equilibrium = Fork.from_params({"type": "equilibrium"})
    torch.testing.assert_close(by_fork(equilibrium, g, h, exit_number=2, num_exits=5), (g + 3 * h) / 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_projection_sample_by_sample(dtype: torch.dtype) -> None:
    g, h = (gradient.to(dtype) for gradient in gradients())
    fork = Fork.from_params({"type": "projected", "exit": 0.25, "above": 0.5})
    found = by_fork(fork, g, h)
    assert found.dtype == dtype
    conflicts = 0
    for row in range(len(g)):
        a, b = g[row].double().flatten().tolist(), h[row].double().flatten().tolist()
        product = sum(x * y for x, y in zip(a, b))
        if product < 0:
            conflicts += 1
            a_size, b_size = sum(x * x for x in a), sum(y * y for y in b)
            a, b = (
                [x - product / b_size * y for x, y in zip(a, b)],
                [y - product / a_size * x for x, y in zip(a, b)],
            )
        expected = torch.tensor([0.25 * x + 0.5 * y for x, y in zip(a, b)], dtype=torch.float64)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(found[row].double().flatten(), expected, atol=tolerance, rtol=tolerance)
    assert 0 < conflicts < len(g)


def test_projection_without_one_of_the_gradients() -> None:
    g, _ = gradients()
    fork = Fork.from_params("projected")
    torch.testing.assert_close(by_fork(fork, g, torch.zeros_like(g)), g)
    torch.testing.assert_close(by_fork(fork, torch.zeros_like(g), g), g)


def test_factors_are_annealed_from_the_first_to_the_last_step() -> None:
    g, h = gradients()
    fork = Fork.from_params({"type": "scaled", "exit": [1.0, 0.2]})
    for step, factor in ((0, 1.0), (2, 0.6), (4, 0.2)):
        fork.start_step(step, 5)
        torch.testing.assert_close(by_fork(fork, g, h), factor * g + h)


@pytest.mark.parametrize("config", [{"exit": -0.1}, {"above": [1.0]}, {"exit": [1.0, -1.0]}])
def test_factors_out_of_range_are_named(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(config))}: found .*allowed: "):
        Fork.from_params({"type": "scaled", **config})


def test_annealed_factors_are_updated_in_place() -> None:
    """A captured graph reads the tensor that it was captured with."""
    fork: Any = Fork.from_params({"type": "projected", "exit": [1.0, 0.0]})
    factors = fork.factors
    fork.start_step(4, 5)
    assert fork.factors is factors and factors.tolist() == [0.0, 1.0]


def test_gradnorm_reaches_its_share() -> None:
    g, h = gradients()
    fork: Any = Fork.from_params({"type": "gradnorm", "share": 0.2, "rate": 0.5, "max_ratio": 100.0})
    fork.bind(3)
    torch.testing.assert_close(by_fork(fork, 5 * g, h), 5 * g + h)  # factors start at 1
    for _ in range(40):
        by_fork(fork, 5 * g, h, exit_number=2)
    a = 2 * float(fork.log_ratio[1].sigmoid())
    found = by_fork(fork, 5 * g, h, exit_number=2)
    torch.testing.assert_close(found, a * 5 * g + (2 - a) * h, atol=1e-5, rtol=1e-5)
    own, above = float((a * 5 * g).norm()), float(((2 - a) * h).norm())
    assert own / (own + above) == pytest.approx(0.2, rel=1e-4)


def test_gradnorm_takes_one_step_down_its_formula() -> None:
    g, h = gradients()
    fork: Any = Fork.from_params({"type": "gradnorm", "share": 0.3, "rate": 0.1})
    fork.bind(2)
    fork.log_ratio.fill_(0.4)
    ratio = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    a = 2 * ratio.sigmoid()
    distance = (a * g.norm() / 0.3).log() - ((2 - a) * h.norm() / 0.7).log()
    (distance**2 / 2).backward()
    by_fork(fork, g, h, num_exits=2)
    assert ratio.grad is not None
    assert float(fork.log_ratio) == pytest.approx(0.4 - 0.1 * float(ratio.grad), rel=1e-5)


def test_gradnorm_keeps_its_factors_where_a_gradient_is_missing_and_within_the_limit() -> None:
    g, h = gradients()
    fork: Any = Fork.from_params({"type": "gradnorm", "rate": 1.0, "max_ratio": 4.0})
    fork.bind(2)
    for a, b in ((0 * g, h), (g, 0 * h), (g * torch.inf, h)):
        by_fork(fork, a, b)
        assert fork.log_ratio.tolist() == [0.0]
    by_fork(fork, 1e-9 * g, h)
    assert float(fork.log_ratio.exp()) == pytest.approx(4.0)


def test_learned_factors_are_saved_with_the_network() -> None:
    model = tiny_model("weighted_distillation", fork={"type": "gradnorm", "rate": 1.0})
    model.train()(**tiny_batch())["loss"].backward()
    factors = model.state_dict()["encoder.fork.log_ratio"]
    assert factors.shape == (2,) and bool((factors != 0).all())
    assert not [name for name in tiny_model("final_exit", fork="projected").state_dict() if "fork" in name]


@pytest.mark.parametrize("config", [{"share": 1.0}, {"rate": 0.0}, {"max_ratio": 0.5}])
def test_options_of_gradnorm_out_of_range_are_named(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(config))}: found .*allowed: "):
        Fork.from_params({"type": "gradnorm", **config})


def test_a_network_gets_the_gradient_of_its_fork() -> None:
    """Block 1 of three gets 0.3 times exit 1's gradient and the sum of the exits above, by three backward passes."""
    batch = tiny_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    model = tiny_model("weighted_distillation", dropout=0.0, fork={"type": "scaled", "exit": 0.3})
    without_dropout(model)

    def block_gradient(exits: list[int]) -> Tensor:
        model.zero_grad()
        model.encoder.outputs(inputs).logits[:, exits].square().sum().backward()
        return next(model.encoder.backbone.transformer_model.encoder.layer[0].parameters()).grad.clone()  # type: ignore

    # Exit 2 is scaled where it enters, at its own fork, too.
    expected = block_gradient([0]) + block_gradient([1]) + block_gradient([2])
    torch.testing.assert_close(block_gradient([0, 1, 2]), expected)
    plain = tiny_model("weighted_distillation", dropout=0.0)
    without_dropout(plain)
    alone = []
    for number in range(3):
        plain.zero_grad()
        plain.encoder.outputs(inputs).logits[:, number].square().sum().backward()
        alone.append(next(plain.encoder.backbone.transformer_model.encoder.layer[0].parameters()).grad.clone())  # type: ignore
    torch.testing.assert_close(expected, 0.3 * alone[0] + 0.3 * alone[1] + alone[2], atol=1e-5, rtol=1e-4)


def test_a_detached_network_trains_each_block_by_its_own_exit() -> None:
    batch = tiny_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    model = tiny_model("weighted_distillation", fork="detached").train()
    model.encoder.outputs(inputs).logits[:, 2].sum().backward()
    layers = model.encoder.backbone.transformer_model.encoder.layer  # type: ignore[union-attr]
    moved = [any(p.grad is not None and bool(p.grad.any()) for p in layer.parameters()) for layer in layers]
    assert moved == [False, False, True]


def test_equilibrium_is_one_fork() -> None:
    with pytest.raises(ConfigurationError, match="gradient_equilibrium: found true together with a fork"):
        tiny_model("weighted_distillation", gradient_equilibrium=True, fork="sum")


def without_dropout(model: torch.nn.Module) -> None:
    """Training mode, where forks act, without randomness."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
