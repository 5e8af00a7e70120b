"""What is timed: an engine with its exits, with exits off, with exits that nobody uses, and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.baselines import FullDepth, NeverLeaves
from beem_plugin.execution.engine import Engine, SteppedNetwork, device_of, gather_decisions
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import ExitDecisions

Batches = Sequence[dict[str, Tensor]]
Case = Callable[[], Iterable[Any]]
PLAIN = "transformers"


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
    return {
        "exits": lambda: with_exits.run(network, policy, batches),
        "full_depth": lambda: without.run(full, Final(), batches),
        "nobody_leaves": lambda: never.run(network, NeverLeaves(policy), batches),
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
    Counts the layer calls that really happen, in tokens, padding included.

    # Parameters

    network : `SteppedNetwork`
    """

    def __init__(self, network: SteppedNetwork) -> None:
        self.network = network
        self.exit_layers = network.exit_layers
        self.num_labels = network.num_labels
        self.computed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        layers = self.exit_layers[exit_number - 1] - (self.exit_layers[exit_number - 2] if exit_number > 1 else 0)
        self.computed += layers * state.attention_mask.numel()
        return self.network.advance(exit_number, state)


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
        If all samples leave early and the engine computes all layers for them: such an engine simulates early exit, and
        its seconds are none of early exit's.
    """
    decisions, computed = _run_counted(config, network, policy, batches)
    _, full = _run_counted(config, FullDepth(network), Final(), batches)
    if bool((decisions.exits < network.num_exits).all()) and computed >= full:
        raise ConfigurationError(
            f"--engines: {config['type']!r} computes all layers of samples that have left: it simulates early exit, "
            "and simulated seconds are not reported as measured"
        )
    return decisions, full / computed


def _run_counted(
    config: dict[str, Any], network: SteppedNetwork, policy: ExitPolicy, batches: Batches
) -> tuple[ExitDecisions, int]:
    engine = Engine.from_params(dict(config))
    if hasattr(engine, "capture"):
        engine.capture = False  # what is captured is replayed past the count
    counted = CountedNetwork(network)
    samples = sum(len(batch["input_ids"]) for batch in batches)
    runs = engine.run(counted, policy, batches)  # type: ignore[arg-type]
    _, decisions = gather_decisions(runs, network.num_labels, samples)
    return decisions, counted.computed
