"""The layers that an engine computes, and whether it skips those of samples that have exited."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.execution.metering.baselines import FullDepth, NetworkView
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy

Batches = Sequence[RaggedBatch]

MIN_SKIPPED = 0.09
"""Share of the layers, each counted once a token, that the exits must skip before an engine's count is checked."""

MIN_SAVED = 0.25
"""
Share of the skipped layers that an engine must not compute. Compaction is delayed, but for less than a twentieth of
the tokens.
"""


def lengths_in_order(batches: Batches) -> Tensor:
    """`(samples,)` int64: number of tokens of each sample, in the order of the input."""
    samples = RaggedBatch.join(batches)
    return samples.lengths[samples.index.argsort()]


class CountedNetwork(NetworkView):
    """Counts the layer calls of a network in tokens: `computed`, padding included, and `real`, without."""

    computed = real = 0

    def advance(self, exit_number: int, state: BackboneState, **options: Any) -> BackboneState:
        layers = self.exit_layers[exit_number - 1] - (self.exit_layers[exit_number - 2] if exit_number > 1 else 0)
        self.computed += layers * state.attention_mask.numel()
        self.real += layers * int(state.attention_mask.sum())
        return self.network.advance(exit_number, state, **options)

    def run(self, engine: str, policy: ExitPolicy, batches: Batches) -> ExitDecisions:
        """The engine's decisions, without captured graphs, whose replays are not counted."""
        runner = Engine.from_params({"type": engine})
        if hasattr(runner, "capture"):
            runner.capture = False
        runs = runner.run(self, policy, batches)  # type: ignore[arg-type]
        return gather_decisions(runs, self.num_labels, sum(map(len, batches)))[1]


def checked_decisions(
    engine: str, network: SteppedNetwork, policy: ExitPolicy, batches: Batches
) -> tuple[ExitDecisions, float]:
    """
    The engine's decisions in the order of the input, and its computed speed-up: layers times tokens, padding included,
    computed at full depth over those computed under the policy. Raises a `ConfigurationError` if samples exit early and
    the engine computes their layers nevertheless: its seconds are not those of early exit.
    """
    counted, full = CountedNetwork(network), CountedNetwork(FullDepth(network))
    decisions = counted.run(engine, policy, batches)
    full.run(engine, Final(), batches)
    lengths = lengths_in_order(batches)
    # On a GPU an engine may read the exits one exit later, without waiting for the device.
    late = int(device_of(network).type == "cuda")
    layers = torch.tensor(network.exit_layers)
    taken = layers[(decisions.exits.cpu() - 1 + late).clamp(max=len(layers) - 1)]
    skipped = int(((layers[-1] - taken) * lengths).sum())
    # Without padding: engines batch samples of different lengths once few are left.
    saved = full.real - counted.real
    if skipped > MIN_SKIPPED * network.exit_layers[-1] * int(lengths.sum()) and saved < MIN_SAVED * skipped:
        raise ConfigurationError(
            f"--engines: {engine!r} computes the layers of samples that have left: it simulates early exit, "
            "and simulated seconds are not reported as measured"
        )
    return decisions, full.computed / counted.computed
