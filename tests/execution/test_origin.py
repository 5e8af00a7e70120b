"""An engine notices every change of the network or the policy between two runs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import tiny
from tests.execution.captured_worlds import GraphsOnHost
from tests.execution.worlds import make_batches, same
from tests.ragged import ragged_batches

ENGINES: dict[str, Callable[[], Engine]] = {
    "single": Single,
    "single, graphs": lambda: GraphsOnHost(length_bucket=16),
    "compaction": Compaction,
    "depth_pools": lambda: DepthPools(tokens_per_chunk=30),
}
BATCHES = make_batches(9, 4)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


@pytest.fixture
def network() -> MultiExitEncoder:
    """Without signals of its own, so that all fast paths are open."""
    torch.manual_seed(0)
    made = MultiExitEncoder(3, tiny("bert")).eval()
    for head in made.exits:
        torch.nn.init.normal_(head.classifier.weight, std=0.8)  # type: ignore[union-attr]
    return made


def change_in_place(network: MultiExitEncoder) -> None:
    with torch.no_grad():
        network.backbone.transformer_model.encoder.layer[0].attention.self.query.weight.mul_(-3)


def change_a_head(network: MultiExitEncoder) -> None:
    with torch.no_grad():
        network.exits[1].classifier.bias.add_(torch.tensor([3.0, 0, 0]))  # type: ignore[union-attr]


def replace_a_parameter(network: MultiExitEncoder) -> None:
    dense = network.backbone.transformer_model.encoder.layer[1].output.dense
    dense.weight = torch.nn.Parameter(dense.weight.detach() * -3)


def assign_data(network: MultiExitEncoder) -> None:
    norm = network.backbone.transformer_model.encoder.layer[1].output.LayerNorm
    norm.weight.data = norm.weight.data * -2


def replace_a_module(network: MultiExitEncoder) -> None:
    network.exits[0] = copy.deepcopy(network.exits[0])
    torch.nn.init.normal_(network.exits[0].classifier.weight, std=0.8)  # type: ignore[union-attr]


def add_a_hook(network: MultiExitEncoder) -> None:
    layer = network.backbone.transformer_model.encoder.layer[0].output
    layer.register_forward_hook(lambda module, inputs, output: output * -2)


def replace_a_forward(network: MultiExitEncoder) -> None:
    pooler = network.exits[0].pooler  # type: ignore[union-attr]
    original = pooler.forward
    pooler.forward = lambda *inputs: -original(*inputs)


def reload(network: MultiExitEncoder) -> None:
    torch.manual_seed(7)
    network.load_state_dict({name: torch.randn_like(value) * 0.3 for name, value in network.state_dict().items()})


CHANGES = [
    change_in_place,
    change_a_head,
    replace_a_parameter,
    assign_data,
    replace_a_module,
    add_a_hook,
    replace_a_forward,
    reload,
]


def results(engine: Engine, network: MultiExitEncoder, policy: MaxProbability) -> torch.Tensor:
    found = gather_decisions(engine.run(network, policy, ragged_batches(BATCHES)), 3, 9)[1]
    same(found, gather_decisions(ENGINES["compaction"]().run(network, policy, ragged_batches(BATCHES)), 3, 9)[1])
    return found.log_probabilities


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_network(engine: Engine, network: MultiExitEncoder, change: Callable) -> None:
    policy = MaxProbability(thresholds=0.6)
    before = results(engine, network, policy)
    prepared = engine._compiled
    assert torch.equal(results(engine, network, policy), before) and engine._compiled is prepared
    change(network)
    assert not torch.allclose(results(engine, network, policy), before, atol=1e-3)


def test_a_removed_hook(engine: Engine, network: MultiExitEncoder) -> None:
    policy = MaxProbability(thresholds=0.6)
    before = results(engine, network, policy)
    layer = network.backbone.transformer_model.encoder.layer[0].output
    handle = layer.register_forward_hook(lambda module, inputs, output: output * -2)
    assert not torch.allclose(results(engine, network, policy), before, atol=1e-3)
    handle.remove()
    torch.testing.assert_close(results(engine, network, policy), before)


def test_hooks_are_called_in_every_run(engine: Engine, network: MultiExitEncoder) -> None:
    calls: list[int] = []
    network.exits[0].register_forward_hook(lambda *given: calls.append(1))
    for expected in (True, True):
        calls.clear()
        list(engine.run(network, MaxProbability(thresholds=0.6), ragged_batches(BATCHES)))
        assert bool(calls) == expected


def test_a_changed_policy(engine: Engine, network: MultiExitEncoder) -> None:
    policy = MaxProbability(thresholds=1.0)
    before = results(engine, network, policy)
    policy.strategy = MaxProbability(thresholds=0.0).strategy
    assert not torch.allclose(results(engine, network, policy), before, atol=1e-3)


def test_training_mode_and_back(engine: Engine, network: MultiExitEncoder) -> None:
    policy = MaxProbability(thresholds=0.6)
    before = results(engine, network, policy)
    network.train()
    torch.manual_seed(3)
    training = gather_decisions(engine.run(network, policy, ragged_batches(BATCHES)), 3, 9)[1].log_probabilities
    assert not torch.allclose(training, before, atol=1e-3), "dropout is active"
    network.eval()
    torch.testing.assert_close(results(engine, network, policy), before)


def test_another_network_of_the_same_shape(engine: Engine, network: MultiExitEncoder) -> None:
    policy, other = MaxProbability(thresholds=0.6), copy.deepcopy(network)
    change_in_place(other)
    assert not torch.allclose(results(engine, network, policy), results(engine, other, policy), atol=1e-3)
