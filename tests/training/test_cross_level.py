"""Learning the weights of loss terms on held-out data: the approximation, and what it does in training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models import Model
from beem_plugin.objectives import MutualDistillation, Objective
from beem_plugin.training.callbacks.cross_level import CrossLevel
from beem_plugin.training.cross_level import (
    count_of,
    held_out_batches,
    measured,
    term_weight_gradient,
    through_softmax,
)
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import tiny
from tests.tiny_captioner import batch, captioner
from tests.tiny_project import CONFIGS
from tests.training.staged_configs import LearnedWeights, moved, results, staged, train_and_kill, weights


class Tiny:
    """A network of two layers in plain tensors; three loss terms on one batch, a loss on another."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.parameters = [random(4, 5).requires_grad_(), random(5, 2).requires_grad_()]
        self.train, self.held_out = random(7, 4), random(6, 4)
        self.train_label, self.held_out_label = ((rows[:, 0] > 0).long() for rows in (self.train, self.held_out))
        self.logits = random(3)

    def terms_at(self, parameters: list[Tensor]) -> Tensor:
        hidden = (self.train @ parameters[0]).tanh()
        output = hidden @ parameters[1]
        right = torch.nn.functional.cross_entropy(output, self.train_label)
        wrong = torch.nn.functional.cross_entropy(output, 1 - self.train_label)
        return torch.stack([right, wrong, hidden.square().mean()])

    def held_out_at(self, parameters: list[Tensor]) -> Tensor:
        output = (self.held_out @ parameters[0]).tanh() @ parameters[1]
        return torch.nn.functional.cross_entropy(output, self.held_out_label)

    def gradient(self, rate: float, look_ahead: bool) -> Tensor:
        found = term_weight_gradient(
            self.parameters,
            lambda: self.terms_at(self.parameters),
            lambda: self.held_out_at(self.parameters),
            rate,
            (lambda: (self.logits.softmax(0) * self.terms_at(self.parameters)).sum()) if look_ahead else None,
        )
        return through_softmax(found, self.logits.softmax(0))


def test_look_ahead_agrees_with_autograd_through_the_step() -> None:
    """The exact gradient of the held-out loss after one step of gradient descent, by double backward."""
    tiny, rate = Tiny(), 0.1
    logits = tiny.logits.clone().requires_grad_()
    loss = (logits.softmax(0) * tiny.terms_at(tiny.parameters)).sum()
    step = torch.autograd.grad(loss, tiny.parameters, create_graph=True)
    ahead = [parameter - rate * value for parameter, value in zip(tiny.parameters, step)]
    (exact,) = torch.autograd.grad(tiny.held_out_at(ahead), logits)
    before = [parameter.detach().clone() for parameter in tiny.parameters]
    torch.testing.assert_close(tiny.gradient(rate, look_ahead=True), exact, rtol=1e-4, atol=1e-9)
    assert all(torch.equal(old, new) for old, new in zip(before, tiny.parameters))
    assert all(parameter.grad is None for parameter in tiny.parameters)
    # The wrong labels' term gets less weight by gradient descent, the right labels' term more.
    assert exact[1] > 0 > exact[0]


def test_first_order_agrees_with_the_products_of_gradients() -> None:
    tiny, rate = Tiny(), 0.1
    held_out = torch.autograd.grad(tiny.held_out_at(tiny.parameters), tiny.parameters)
    products = []
    for number in range(3):
        term = torch.autograd.grad(tiny.terms_at(tiny.parameters)[number], tiny.parameters, allow_unused=True)
        pairs = zip(held_out, term)
        products.append(-rate * torch.stack([(a * b).sum() for a, b in pairs if b is not None]).sum())
    a = tiny.logits.softmax(0)
    jacobian = torch.diag(a) - a.outer(a)
    expected = jacobian @ torch.stack(products)
    torch.testing.assert_close(tiny.gradient(rate, look_ahead=False), expected, rtol=1e-4, atol=1e-9)


def test_held_out_loss_without_gradient_changes_nothing() -> None:
    tiny = Tiny()
    found = term_weight_gradient(
        tiny.parameters,
        lambda: tiny.terms_at(tiny.parameters),
        lambda: torch.zeros((), dtype=torch.float64),
        0.1,
    )
    assert torch.equal(found, torch.zeros(3, dtype=torch.float64))


def cross_level(callback: dict[str, Any] | None = None, **trainer: Any) -> Params:
    """A training in one stage, without dropout, with weights to learn."""
    block = {"type": "cross_level", "share": 0.3, "learning_rate": 0.1, **(callback or {})}
    stage = {"name": "only", "objective": "learned_weights", "callbacks": ["kill_in_stage", block], **trainer}
    return staged([stage], train_data_path="train:60")


def test_weights_leave_the_harmful_term_and_the_optimizer_leaves_them(tmp_path: Path) -> None:
    train_model(cross_level(num_epochs=8), tmp_path)
    found = results(tmp_path)["cross_level_weights"]
    assert sum(found) == pytest.approx(1) and found[1] > 0.4 and found[2] < 0.2
    best = weights(tmp_path / "stage_1_only" / "best.th")
    assert best["objective.loss_weights"].abs().sum() > 0
    assert "objective.loss_weights" not in weights(tmp_path / "best.th")


def test_rows_are_shared_out(tmp_path: Path) -> None:
    """42 of 60 samples train the model, the other 18 the weights; with `train_on_all` the model sees them too."""
    train_model(cross_level(num_epochs=1), tmp_path / "apart")
    train_model(cross_level({"train_on_all": True}, num_epochs=1), tmp_path / "all")
    steps = [
        weights(tmp_path / name / "stage_1_only" / "training_state_e1_b0.th")["steps_completed"]
        for name in ("apart", "all")
    ]
    assert steps == [-(-42 // 8), -(-60 // 8)]


def loader(rows: int = 60) -> Any:
    from beem_plugin.common.registry import Lazy
    from beem_plugin.data.data_loader import DataLoader
    from tests.training.tiny_components import TinyReader

    config = {"type": "bucket", "batch_size": 8}
    instances = TinyReader().read(f"train:{rows}")
    return Lazy(DataLoader, params=Params(config)).construct(
        instances=instances, vocab=Vocabulary(["low", "high"]), pad_token_id=0, training=True
    )


def test_shares_are_disjoint_the_same_in_every_run_and_keep_the_index() -> None:
    full = loader()
    seen = []
    for _ in range(2):
        callback = CrossLevel("unused", share=0.3)
        rest, held_out = callback.training_data(full), callback._held_out_loader
        assert held_out is not None
        parts = []
        for part in (rest, held_out):
            part.set_epoch(1)
            batches = list(part)
            assert len(batches) == len(part)
            index = torch.cat([batch["index"] for batch in batches])
            labels = torch.cat([batch["label"] for batch in batches])
            names = [full.vocab.label_name(int(label)) for label in labels]
            assert names == [full.instances[int(row)].label for row in index]
            parts.append(index.tolist())
        seen.append(parts)
    assert seen[0] == seen[1]
    assert sorted(seen[0][0] + seen[0][1]) == list(range(60)) and len(seen[0][1]) == 18
    other = CrossLevel("unused", share=0.3, seed=1)
    other.training_data(full)
    assert other._held_out_loader is not None
    assert sorted(seen[0][1]) != sorted(np.concatenate(list(other._held_out_loader.batches)).tolist())


def test_held_out_batches_are_found_by_their_number() -> None:
    """Three batches a pass: whoever begins at the fifth sees what another one sees there."""
    callback = CrossLevel("unused", share=0.3)
    callback.training_data(loader())

    def seen(first: int, last: int) -> list[list[int]]:
        batches = held_out_batches(callback._held_out_loader, 0, 1, first)
        return [batch["index"].tolist() for batch, _ in itertools.islice(batches, last - first)]

    indices = seen(0, 8)
    assert seen(4, 8) == indices[4:]
    assert sorted(sum(indices[:3], [])) == sorted(sum(indices[3:6], [])) and indices[:3] != indices[3:6]
    # Two processes have the three batches as 8 + 8 and 2 + nobody's: each sample counts once in the mean.
    shares = [
        [share for _, share in itertools.islice(held_out_batches(callback._held_out_loader, rank, 2), 2)]
        for rank in (0, 1)
    ]
    assert shares == [[1.0, 2.0], [1.0, 0.0]]


def test_killed_run_recovers_to_the_last_digit(tmp_path: Path) -> None:
    config = cross_level(checkpointer={"save_every_num_batches": 2}, num_epochs=3)
    train_model(config, tmp_path / "whole")
    run = tmp_path / "killed"
    train_and_kill(config, run, "stage_1_only:1:5")
    train_model(config, run, recover=True)
    assert results(run) == results(tmp_path / "whole")
    name = "stage_1_only/model_state_e3_b0.th"
    assert not moved(weights(run / name), weights(tmp_path / "whole" / name))


def test_the_words_of_captions_are_measured_in_chunks_as_all_at_once() -> None:
    model = captioner(objective={"type": "mutual_distillation"}, chunk_elements=50 * 6 * 7)
    data, objective = batch(), model.objective
    assert isinstance(objective, MutualDistillation)
    counted = data["attention_mask"][:, 1:].bool()
    images = model.decoder.image_states(data)
    states = [hidden[counted] for _, hidden, _ in model.decoder.exit_states(data["input_ids"][:, :-1], images)]
    logits = torch.stack([model.decoder.exit_logits(number, state) for number, state in enumerate(states, 1)], 1)
    target = data["input_ids"][:, 1:][counted]
    expected = objective.terms(ExitOutputs(logits), target)
    weights = torch.rand(36)
    found = measured(model, data, objective.terms, weights)
    torch.testing.assert_close(found["terms"], expected.detach(), rtol=1e-4, atol=1e-5)
    parameters = list(model.decoder.parameters())
    whole = torch.autograd.grad((weights * expected).sum(), parameters, allow_unused=True)
    for ours, theirs in zip(torch.autograd.grad(found["loss"], parameters, allow_unused=True), whole):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert count_of(data) == len(target)
    assert model.objective is objective and model.get_metrics() == {}


def test_a_captioner_learns_the_weights_of_its_terms(tmp_path: Path) -> None:
    train_model(Params(tiny(CONFIGS / "captions" / "coco_leebert.jsonnet")), tmp_path)
    found = results(tmp_path)
    assert len(found["cross_level_weights"]) == 9 and len(set(found["cross_level_weights"])) > 2
    # Held-out batches are no part of the metrics.
    assert found["training_token_accuracy"] <= 1 and found["validation_perplexity"] > 1


@Objective.register("trained_weights", exist_ok=True)
class TrainedWeights(LearnedWeights):
    def __init__(self) -> None:
        super().__init__()
        self.loss_weights.requires_grad_(True)


def test_wrong_uses_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'no_grad: \["objective.loss_weights"\]'):
        train_model(cross_level(objective="trained_weights"), tmp_path / "a")
    frozen = cross_level(objective="trained_weights", no_grad=["loss_weights"], num_epochs=1)
    assert isinstance(train_model(frozen, tmp_path / "b"), Model)
    with pytest.raises(ConfigurationError, match="cross_level: found the objective WeightedDistillation"):
        train_model(cross_level(objective="weighted_distillation"), tmp_path / "c")
    with pytest.raises(ConfigurationError, match="mixed_precision: found 'bf16', allowed with cross_level: \"no\""):
        train_model(cross_level(mixed_precision="bf16"), tmp_path / "d")
    with pytest.raises(ConfigurationError, match=r"trainer\.stages\.0\.callbacks\.1.*share: found 1.5"):
        train_model(cross_level({"share": 1.5}), tmp_path / "e")
