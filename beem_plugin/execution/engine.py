"""How batches run through a multi-exit network so that samples that leave are really computed no further."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions, check_signals
from beem_plugin.common.registry import Registrable
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals


class SteppedNetwork(Protocol):
    """What an engine needs of a network: `models.MultiExitEncoder` is one."""

    exit_layers: list[int]
    num_labels: int

    @property
    def backbone(self) -> Any: ...

    @property
    def num_exits(self) -> int: ...

    @property
    def available_signals(self) -> set[str]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def embed(self, batch: dict[str, Tensor]) -> BackboneState: ...

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState: ...

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals: ...


@dataclass
class ExecutedBatch:
    """
    # Parameters

    index : `Tensor`
        `(samples,)` int64 on the CPU: the samples' positions in the input.
    decisions : `ExitDecisions`
        Exit and output of each sample, on the CPU, in the order of `index`.
    """

    index: Tensor
    decisions: ExitDecisions


class Engine(Registrable):
    """
    Runs a network under an exit policy. All engines give the same exits and labels; they differ in speed.
    """

    default_implementation = "compaction"

    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        """
        Yields every sample of `batches` exactly once, in any order. Sorting, padding and packing are the engine's.

        # Parameters

        network : `SteppedNetwork`
            In evaluation mode, on the device where it is to run, in the precision in which it is to run: the layers
            compute in the weights' precision, exits are always decided in the decision precision.
        policy : `ExitPolicy`
        batches : `Iterable[RaggedBatch]`
            On the CPU, of any sizes, in the order of the input.
        """
        raise TypeError(f"{type(self).__name__} does not define run")

    @staticmethod
    def prepare(network: SteppedNetwork, policy: ExitPolicy) -> None:
        """Binds `policy` to `network` and refuses what cannot work before anything runs."""
        policy.bind(network.exit_layers, network.num_labels)
        check_signals(policy, set(network.available_signals), "the model")
        policy.check_calibrated()


def device_of(network: SteppedNetwork) -> torch.device:
    return next(iter(network.parameters())).device


def pad_token_of(network: object) -> int:
    """The padding id in the configuration of the network's backbone, 0 if there is none."""
    config = getattr(getattr(network, "backbone", None), "config", None)
    return getattr(config, "pad_token_id", None) or 0


def gather_decisions(
    runs: Iterable[ExecutedBatch], num_labels: int, total: int | None = None
) -> tuple[Tensor, ExitDecisions]:
    """
    All samples that an engine yields, in the order of the input.

    # Parameters

    runs : `Iterable[ExecutedBatch]`
        What `Engine.run` returns.
    num_labels : `int`
        For the shape of the result when there are no samples.
    total : `int`, optional (default = `None`)
        How many samples there should be; another number, or one that came twice, is an error.

    # Returns

    `tuple[Tensor, ExitDecisions]`
        `(samples,)` int64, the sorted indices, and their decisions.
    """
    done = list(runs)
    if not done:
        empty = torch.zeros(0, dtype=torch.int64)
        return empty, ExitDecisions(empty, empty, torch.zeros(0, num_labels, dtype=torch.float64), None)
    index = torch.cat([batch.index for batch in done])
    order = index.argsort(stable=True)
    scores = [batch.decisions.scores for batch in done]
    index = index[order]
    if bool((index[1:] == index[:-1]).any()) or (total is not None and len(index) != total):
        raise RuntimeError(
            f"the engine returned {len(index)} results ({len(index.unique())} unique) for {total} samples"
        )
    return index, ExitDecisions(
        torch.cat([batch.decisions.exits for batch in done])[order],
        torch.cat([batch.decisions.predictions for batch in done])[order],
        torch.cat([batch.decisions.log_probabilities for batch in done])[order],
        None
        if any(score is None for score in scores)
        else torch.cat([score for score in scores if score is not None])[order],
    )
