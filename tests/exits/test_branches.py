"""Branches against their formulas, and in every part of the product that runs exits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import beem_plugin.components  # noqa: F401
from beem_plugin.calibration.replay import replay
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution import Compaction, DepthPools, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.metering.macs import count_macs, exit_costs
from beem_plugin.exits.branches import Branch, BranchedHead
from beem_plugin.exits.policies import Margin, MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.multi_exit_trace import trace_model
from tests.backbones.tiny_models import tiny
from tests.execution.worlds import make_batches
from tests.objectives.tiny_model import loss_falls, tiny_batch, tiny_model
from tests.ragged import ragged_batches

KINDS: list[dict[str, Any]] = [
    {"type": "transformer", "width": 8, "num_heads": 2},
    {"type": "mlp", "width": 6},
    {"type": "adapter", "width": 4},
]


def awake(module: torch.nn.Module) -> None:
    """Gives the branches an output, as training would."""
    torch.manual_seed(2)
    for part in module.modules():
        if isinstance(part, Branch):
            torch.nn.init.normal_(part.up.weight, std=0.5)
            torch.nn.init.normal_(part.down.weight, std=0.5)


def branch(config: dict[str, Any], hidden: int = 16) -> Any:
    torch.manual_seed(1)
    made = Branch.from_params(dict(config), hidden_size=hidden)
    return made.eval()


def sample(hidden: int = 16) -> tuple[Tensor, Tensor]:
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    return torch.randn(2, 5, hidden, generator=torch.Generator().manual_seed(1)), mask


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config["type"])
def test_an_untrained_branch_changes_nothing_and_padding_does_not_matter(config: dict[str, Any]) -> None:
    made = branch(config)
    hidden, mask = sample()
    assert torch.equal(made(hidden, mask), hidden)
    awake(made)
    found = made(hidden, mask)
    assert not torch.allclose(found, hidden)
    torch.testing.assert_close(made(hidden[:1, :3], mask[:1, :3])[0], found[0, :3])


def test_a_transformer_branch_token_by_token() -> None:
    made = branch(KINDS[0])
    awake(made)
    hidden, mask = sample()
    found = made(hidden, mask)
    for row in range(2):
        h = made.down(hidden[row, mask[row]])  # (tokens, 8)
        query, key, value = made.query_key_value(h).chunk(3, -1)
        parts = []
        for first in (0, 4):
            scores = query[:, first : first + 4] @ key[:, first : first + 4].T / 2
            parts.append(scores.softmax(-1) @ value[:, first : first + 4])
        h = made.norm(h + made.merge(torch.cat(parts, -1)))
        feed_forward = made.feed_forward
        inner = torch.nn.functional.gelu(feed_forward.expand(h))
        h = feed_forward.norm(h + feed_forward.contract(inner))
        torch.testing.assert_close(found[row, mask[row]], hidden[row, mask[row]] + made.up(h))


def test_an_adapter_of_etfee_token_by_token() -> None:
    made = branch({"type": "adapter", "width": 4, "activation": "relu", "scale": 8.0, "norm": True})
    awake(made)
    hidden, mask = sample()
    inner = (hidden @ made.down.weight.T + made.down.bias).clamp_min(0) * 8
    expected = hidden + inner @ made.up.weight.T + made.up.bias
    expected = (expected - expected.mean(-1, keepdim=True)) / (
        expected.var(-1, keepdim=True, correction=0) + 1e-5
    ).sqrt()
    torch.testing.assert_close(made(hidden, mask), expected)


def test_sizes_at_768() -> None:
    counts = [sum(p.numel() for p in branch({"width": width}, 768).parameters()) for width in (192, 384)]
    assert [round(count / 1e6, 1) for count in counts] == [0.6, 1.8]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"type": "transformer", "width": 10, "num_heads": 4}, "num_heads: found 4 for width 10"),
        ({"type": "adapter", "width": 0}, "width: found 0"),
        ({"type": "adapter", "activation": "tanh"}, "activation: found 'tanh'"),
        ({"type": "mlp", "dropout": 1.0}, "dropout: found 1.0"),
    ],
)
def test_options_out_of_range_are_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        branch(config)


def test_every_exit_but_the_last_has_a_branch_unless_a_list_says_otherwise() -> None:
    def has_branch(block: Any) -> list[bool]:
        model = tiny_model("weighted_distillation", branch=block)
        return [isinstance(head, BranchedHead) for head in model.encoder.exits]

    assert has_branch({"type": "mlp", "width": 4}) == [True, True, False]
    assert has_branch("adapter") == [True, True, False]
    assert has_branch([None, "adapter", {"type": "mlp", "width": 4}]) == [False, True, True]
    with pytest.raises(ConfigurationError, match="branch: found a list of 1, allowed: 3 entries"):
        has_branch(["adapter"])


@pytest.mark.parametrize(
    "encoder",
    [
        {"pooler": {"type": "bert_pooler", "pooling": "mean"}},
        {"pooler": "cls_pooler", "head": "cascaded"},
        {"pooler": "mixed_pooler"},
        {"head": {"type": "attention", "size": 8}},
        {"head": "past_future"},
        {"signals": ["halt", "similarity", "gate", "predicted_error"], "share_pooler": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("config", KINDS, ids=lambda config: config["type"])
def test_branches_train_under_every_head(config: dict[str, Any], encoder: dict[str, Any]) -> None:
    model = tiny_model("weighted_distillation", branch=config, fork="projected", **encoder)
    before = [head.branch.up.weight.clone() for head in list(model.encoder.exits)[:-1]]  # type: ignore[operator]
    assert loss_falls(model)
    for head, weight in zip(list(model.encoder.exits)[:-1], before, strict=True):
        assert not torch.equal(head.branch.up.weight, weight)  # type: ignore[union-attr]
    assert "branches" in model.parts()


def network(config: dict[str, Any], family: str = "bert", **encoder: Any) -> MultiExitEncoder:
    torch.manual_seed(3)
    made = MultiExitEncoder.from_params({"branch": config, **encoder}, num_labels=3, backbone=tiny(family))
    awake(made)
    with torch.no_grad():
        for name, parameter in made.exits.named_parameters():
            if "classifier" in name and parameter.dim() == 2:
                parameter.mul_(40)
    return made.eval()


@torch.no_grad()
def one_by_one(made: MultiExitEncoder, batches: list[dict[str, Tensor]], threshold: float) -> list[tuple[int, int]]:
    """Exit and label of each sample, which runs alone and without padding."""
    found = {}
    for batch in batches:
        for row, index in enumerate(batch["index"].tolist()):
            state = made.embed(
                {"input_ids": batch["input_ids"][row : row + 1, : int(batch["attention_mask"][row].sum())]}
            )
            for exit_number in range(1, made.num_exits + 1):
                state = made.advance(exit_number, state)
                probability, label = made.exit_logits(exit_number, state).softmax(-1)[0].max(-1)
                if probability >= threshold or exit_number == made.num_exits:
                    found[index] = (exit_number, int(label))
                    break
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert-local"])
@pytest.mark.parametrize("config", KINDS, ids=lambda config: config["type"])
def test_engines_agree_with_the_reference(config: dict[str, Any], family: str) -> None:
    made = network(config, family)
    batches = make_batches(23, 6)
    expected = one_by_one(made, batches, 0.8)
    assert len({exit_number for exit_number, _ in expected}) > 1
    policy = MaxProbability(thresholds=0.8)
    for engine in (Single(), Compaction(), DepthPools(), DepthPools(tokens_per_chunk=24, window_tokens=90)):
        _, found = gather_decisions(engine.run(made, policy, ragged_batches(batches)), 3, total=23)
        assert list(zip(found.exits.tolist(), found.predictions.tolist())) == expected, type(engine)


def test_multiply_accumulates_of_a_branch_are_counted() -> None:
    """A width-8 block on hidden size h at T tokens: T (2 h 8 + 4 8^2 + 4 8^2) + 2 T^2 8."""
    plain, branched = network_macs(None), network_macs(KINDS[0])
    hidden = tiny("bert").hidden_size
    per_token = 2 * hidden * 8 + 4 * 8 * 8 + 2 * 8 * 16
    expected = torch.tensor([0, per_token, 2 * 8], dtype=torch.float64)
    for exit_index in range(3):
        torch.testing.assert_close(branched[exit_index] - plain[exit_index], expected)
    torch.testing.assert_close(branched[3], plain[3])


def network_macs(config: Any) -> Tensor:
    return count_macs(network(config)).heads


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config["type"])
def test_exported_segments_hold_their_branches(config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from beem_plugin.execution.onnx.export import export_network
    from tests.execution.exported import run_exported

    made = network(config)
    policy = MaxProbability(thresholds=0.8)
    policy.bind(made.exit_layers, 3)
    export_network(made, policy, tmp_path)
    batches = make_batches(14, 5)
    found = run_exported(tmp_path, batches)
    assert list(zip(found.exits.tolist(), found.predictions.tolist())) == one_by_one(made, batches, 0.8)


def test_thresholds_for_a_speed_count_branches() -> None:
    model = tiny_model("weighted_distillation", branch={"type": "transformer", "width": 4})
    batch = {**tiny_batch(), "index": torch.arange(6)}
    trace = trace_model(model, [batch], None, "here")
    # T (2 h w + 4 w^2 + 4 w^2) + 2 T^2 w over T (4 h^2 + 2 h i) + 2 T^2 h, with h = 16, w = 4, i = 24 and T = 16.
    part = (16 * (2 * 64 + 8 * 16) + 2 * 256 * 4) / (16 * (4 * 256 + 2 * 16 * 24) + 2 * 256 * 16)
    assert trace.exit_costs == pytest.approx([1 + part, 2 + 2 * part, 3 + 2 * part], abs=1e-3)
    assert tiny_trace(None).exit_costs == [1, 2, 3]
    policy = ExitPolicy.from_params({"type": "max_probability", "thresholds": {"type": "budget", "speedup": 1.5}})
    details = policy.calibrate(trace).to_json()
    exits = replay(policy, trace).exits
    mean = sum(trace.exit_costs[int(number) - 1] for number in exits) / len(exits)
    assert mean <= trace.exit_layers[-1] / 1.5 + 1e-6
    assert str(round(mean, 4))[:5] in str(details)


def tiny_trace(branch: Any) -> Any:
    model = tiny_model("weighted_distillation", branch=branch)
    return trace_model(model, [{**tiny_batch(), "index": torch.arange(6)}], None, "here")


def test_only_branches_that_are_run_cost_layers() -> None:
    kind = {"type": "mlp", "width": 8}
    encoder = tiny_model("weighted_distillation", branch=[kind, kind, kind]).encoder
    first, second, third = exit_costs(encoder)
    part = first - 1
    assert part > 0.05 and [second, third] == pytest.approx([2 + 2 * part, 3 + 3 * part], abs=3e-4)

    class NeedsNone(Margin):
        def needs(self, exit_number: int) -> bool:
            assert exit_number < 3  # the last exit is always run
            return False

    for policy, expected in (
        (Margin(thresholds=["never", 0.5]), [1, 2 + part, 3 + 2 * part]),
        (Margin(thresholds="never"), [1, 2, 3 + part]),
        (NeedsNone(thresholds=0.5), [1, 2, 3 + part]),
    ):
        policy.bind(encoder.exit_layers, 2)
        assert exit_costs(encoder, policy) == pytest.approx(expected, abs=3e-4)
