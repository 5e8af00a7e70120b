"""Networks, policies and inputs for the engines, and the slow reference that they are held against."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import tiny
from tests.ragged import ragged_batches

WEIGHTS = [0.1, 0.25, 0.3, 0.45]
SIGNALS = ("wanted", "similarity", "gate", "halt", "predicted_error", "position")


class World(MultiExitEncoder):
    """A multi-exit encoder whose further signals are drawn from each sample's tokens, the same in every batch."""

    def __init__(self, family: str = "bert", exit_layers: list[int] | None = None, num_labels: int = 3) -> None:
        super().__init__(num_labels, tiny(family), exit_layers)
        with torch.no_grad():
            for head in self.exits:
                head.classifier.weight.mul_(40)
        self.eval()

    @property
    def available_signals(self) -> set[str]:
        return set(SIGNALS)

    def embed(self, batch: dict[str, Tensor], backbone: Any = None) -> BackboneState:
        state = super().embed(batch, backbone)
        real = state.attention_mask.long()
        key = (batch["input_ids"] * real * (torch.arange(real.shape[1], device=real.device) + 7)).sum(1)
        return BackboneState(
            state.hidden_states, state.attention_mask, {**state.batched, "key": key}, state.shared, state.token_dims
        )

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        # An exported segment starts from hidden states alone.
        key = state.batched.get("key", torch.zeros(len(state.hidden_states), dtype=torch.int64))
        numbers = torch.arange(len(SIGNALS), device=key.device)
        values = ((key.unsqueeze(1) * (31 + 2 * numbers) + exit_number * 17 * numbers) % 97).float() / 97
        extra = dict(zip(SIGNALS, values.unbind(1), strict=True))
        extra["wanted"] = (key % self.num_exits).float() + 1
        extra["position"] = (key % 20).float()
        return ExitSignals(self.exit_logits(exit_number, state), extra)


class Wanted(ExitPolicy):
    """Each sample exits where its tokens determine; `shift` moves all of them, up to all samples or none."""

    required_signals: ClassVar[tuple[str, ...]] = ("wanted",)

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        # The score counts exits, so that a state that is not carried along with its sample shows.
        return signals.signal("wanted") + self.shift <= exit_number, ExitState(score=state["score"] + exit_number)


def make_batches(count: int, batch_size: int, seed: int = 0, longest: int = 14, shuffled: bool = True) -> list[dict]:
    """`count` samples of random lengths in batches as the collator makes them, in any order."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    tokens = torch.randint(3, 60, (count, longest), generator=generator)
    order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
    batches = []
    for start in range(0, count, batch_size):
        index = order[start : start + batch_size]
        width = int(lengths[index].max())
        mask = (torch.arange(width) < lengths[index, None]).long()
        input_ids = tokens[index, :width].masked_fill(mask == 0, 0)
        batches.append({"input_ids": input_ids, "attention_mask": mask, "index": index, "label": index % 3})
    return batches


def reference(network: World, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]) -> ExitDecisions:
    return replay(policy, reference_trace(network, batches))


def reference_trace(network: World, batches: Iterable[dict[str, Tensor]]) -> ExitTrace:
    """Every sample alone, without padding, at full depth. In the order of the index."""
    logits, extra, indices = [], [], []
    with torch.inference_mode():
        for samples in ragged_batches(batches):
            indices.append(samples.index)
            for number in range(len(samples)):
                state = network.embed(samples.padded(number, number + 1))
                found = []
                for exit_number in range(1, network.num_exits + 1):
                    state = network.advance(exit_number, state)
                    found.append(network.exit_signals(exit_number, state))
                logits.append(torch.stack([signals.logits for signals in found], 1))
                extra.append({name: torch.stack([s.extra[name] for s in found], 1) for name in SIGNALS})
    order = torch.cat(indices).argsort()
    return ExitTrace(
        torch.cat(logits)[order],
        torch.full((len(order),), -1 if network.num_labels > 1 else float("nan")),
        signals={name: torch.cat([values[name] for values in extra])[order] for name in SIGNALS},
        meta={"exit_layers": network.exit_layers},
    )


def check(
    engine: Engine,
    network: World,
    policy: ExitPolicy,
    batches: list[dict[str, Tensor]],
    trace: ExitTrace | None = None,
) -> ExitDecisions:
    """The engine's results, checked against the reference's, which needs `reference_trace` of these batches."""
    expected = replay(policy, trace or reference_trace(network, batches))
    total = sum(len(batch["input_ids"]) for batch in batches)
    index, found = gather_decisions(engine.run(network, policy, ragged_batches(batches)), network.num_labels, total)
    assert index.tolist() == list(range(total))
    same(found, expected)
    return found


def same(found: ExitDecisions, expected: ExitDecisions) -> None:
    assert found.exits.tolist() == expected.exits.tolist()
    assert found.predictions.tolist() == expected.predictions.tolist()
    torch.testing.assert_close(found.log_probabilities.double(), expected.log_probabilities, atol=2e-4, rtol=1e-4)
    assert (found.scores is None) == (expected.scores is None)
    if found.scores is not None and expected.scores is not None:
        torch.testing.assert_close(found.scores.double(), expected.scores, atol=2e-4, rtol=1e-4)


def random_engine(rng: random.Random) -> Engine:
    name = rng.choice(["single", "compaction", "depth_pools"])
    config: dict = {"type": name}
    if name == "compaction":
        config |= {"check_every": rng.choice([1, 2, 3]), "min_leaving": rng.choice([0.0, 0.3])}
    if name == "depth_pools":
        config |= {
            "tokens_per_chunk": rng.choice([1, 16, 40, 400]),
            "window_tokens": rng.choice([1, 60, 100000]),
            "min_leaving": rng.choice([0.0, 0.02, 0.4]),
        }
    return Engine.from_params(config)
