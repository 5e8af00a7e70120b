"""What is timed: an engine with its exits, with exits off, with exits that nobody uses, and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.ragged_batch import ragged_batches
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.execution.metering.baselines import FullDepth, NeverLeaves
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of, pad_token_of
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy

Batches = Sequence[dict[str, Tensor]]
Case = Callable[[], Iterable[Any]]
PLAIN = "transformers"

WORTH_SAVING = 0.09
"""The share of the layers, each counted once a token, that the exits must spare before an engine is held to it."""

LEAST_SAVED = 0.25
"""
Of what the exits spare, how much an engine must not compute. Ours put off taking samples out, but for less than a
twentieth of the tokens.
"""


def engine_cases(
    config: dict[str, Any], network: SteppedNetwork, policy: ExitPolicy, batches: Batches
) -> dict[str, Case]:
    """
    `exits`, the engine under the policy; `full_depth`, the same engine without exits; `nobody_leaves`, the same
    engine under the policy's cost without its gain. Each has an engine of its own, so that none undoes what another
    has captured.
    """
    with_exits, without, never = (Engine.from_params(dict(config)) for _ in range(3))
    full = FullDepth(network)
    ragged = list(ragged_batches(batches, pad_token_of(network)))
    return {
        "exits": lambda: with_exits.run(network, policy, ragged),
        "full_depth": lambda: without.run(full, Final(), ragged),
        "nobody_leaves": lambda: never.run(network, NeverLeaves(policy), ragged),
    }


def plain_case(network: SteppedNetwork, batches: Batches) -> Case:
    """The backbone's transformers model called as anybody calls it, on the same batches, and the last exit's head."""
    model = network.backbone.transformer_model
    device = device_of(network)
    head = getattr(network, "exit_logits", None) or (lambda number, state: network.exit_signals(number, state).logits)

    @torch.inference_mode()
    def run() -> Iterator[Tensor]:
        for batch in batches:
            inputs = {name: value.to(device) for name, value in batch.items() if name not in ("index", "label")}
            mask = inputs["attention_mask"].bool()
            hidden = model(**inputs).last_hidden_state
            # The classifier alone: what a network without exits has at its end.
            yield head(network.num_exits, BackboneState(hidden, mask)).argmax(-1).cpu()

    return run


class CountedNetwork:
    """
    Counts the layer calls that really happen, in tokens: `computed`, padding included, and `real`, without.

    # Parameters

    network : `SteppedNetwork`
    """

    def __init__(self, network: SteppedNetwork) -> None:
        self.network = network
        self.exit_layers = network.exit_layers
        self.num_labels = network.num_labels
        self.computed = self.real = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def advance(self, exit_number: int, state: BackboneState, **options: Any) -> BackboneState:
        layers = self.exit_layers[exit_number - 1] - (self.exit_layers[exit_number - 2] if exit_number > 1 else 0)
        self.computed += layers * state.attention_mask.numel()
        self.real += layers * int(state.attention_mask.sum())
        return self.network.advance(exit_number, state, **options)


def answers_of(
    config: dict[str, Any], network: SteppedNetwork, policy: ExitPolicy, batches: Batches
) -> tuple[ExitDecisions, float]:
    """
    # Returns

    `tuple[ExitDecisions, float]`
        What the engine decides, in the order of the input, and its computed speed-up: layers times tokens, padding
        included, that it computes at full depth over those that it computes under the policy.

    # Raises

    `ConfigurationError`
        If samples leave early and the engine computes their layers nevertheless: such an engine simulates early exit,
        and its seconds are none of early exit's.
    """
    decisions, counted = _run_counted(config, network, policy, batches)
    _, full = _run_counted(config, FullDepth(network), Final(), batches)
    lengths = lengths_in_order(batches)
    spared = layers_spared(network, decisions.exits, lengths)
    # Without padding: to save calls, engines put samples of different lengths together once there are few.
    saved = full.real - counted.real
    if spared > WORTH_SAVING * network.exit_layers[-1] * int(lengths.sum()) and saved < LEAST_SAVED * spared:
        raise ConfigurationError(
            f"--engines: {config['type']!r} computes the layers of samples that have left: it simulates early exit, "
            "and simulated seconds are not reported as measured"
        )
    return decisions, full.computed / counted.computed


def layers_spared(network: SteppedNetwork, exits: Tensor, lengths: Tensor) -> int:
    """
    The layers that need not be computed, each counted once a token. On a GPU an engine may read one exit later who has
    left, so that the device never waits.

    # Parameters

    network : `SteppedNetwork`
    exits : `Tensor`
        `(samples,)` int64: the exits that were taken, from 1.
    lengths : `Tensor`
        `(samples,)` int64
    """
    late = int(device_of(network).type == "cuda")
    layers = torch.tensor(network.exit_layers)
    taken = layers[(exits.cpu() - 1 + late).clamp(max=len(layers) - 1)]
    return int(((layers[-1] - taken) * lengths).sum())


def lengths_in_order(batches: Batches) -> Tensor:
    """`(samples,)` int64: how many tokens each sample has, in the order of the input."""
    lengths = torch.cat([batch["attention_mask"].sum(1) for batch in batches])
    return lengths[torch.cat([batch["index"] for batch in batches]).argsort()]


def _run_counted(
    config: dict[str, Any], network: SteppedNetwork, policy: ExitPolicy, batches: Batches
) -> tuple[ExitDecisions, CountedNetwork]:
    engine = Engine.from_params(dict(config))
    if hasattr(engine, "capture"):
        engine.capture = False  # what is captured is replayed past the count
    counted = CountedNetwork(network)
    samples = sum(len(batch["input_ids"]) for batch in batches)
    ragged = list(ragged_batches(batches, pad_token_of(network)))
    runs = engine.run(counted, policy, ragged)  # type: ignore[arg-type]
    _, decisions = gather_decisions(runs, network.num_labels, samples)
    return decisions, counted
