"""An engine's results in the order of its input, as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, ExecutedBatch, gather_decisions
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy


def run_in_order(
    engine: Engine, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
) -> Iterator[ExitDecisions]:
    """Yields the decisions of each batch as soon as all of its samples are done, in the order of the batches."""
    pending: list[_Pending] = []

    def read() -> Iterator[RaggedBatch]:
        for batch in batches:
            first = int(batch.index[0])
            pending.append(_Pending(first, first + len(batch)))
            yield batch

    for executed in engine.run(network, policy, read()):
        place_in(pending[:], executed)  # a copy, since the engine may read in a thread of its own
        while pending and pending[0].missing == 0:
            yield pending.pop(0).decisions(network.num_labels)
    if pending:
        raise RuntimeError(f"the engine returned no result for {sum(batch.missing for batch in pending)} samples")


@dataclass
class _Pending:
    """The results so far of samples `first` to `last - 1`."""

    first: int
    last: int
    parts: list[ExecutedBatch] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.last - self.first - sum(len(part.index) for part in self.parts)

    def decisions(self, num_labels: int) -> ExitDecisions:
        return gather_decisions(self.parts, num_labels, self.last - self.first)[1]


def place_in(pending: Sequence[_Pending], executed: ExecutedBatch) -> None:
    """Divides results among the batches that they belong to; `pending` is in the order of the input."""
    index, decisions = executed.index.numpy(), executed.decisions
    if (index[1:] < index[:-1]).any():
        order = index.argsort(kind="stable")
        index, decisions = index[order], decisions[torch.from_numpy(order)]
    bounds = index.searchsorted([*(batch.first for batch in pending), pending[-1].last]).tolist()
    sorted_index = torch.from_numpy(index)
    for batch, begin, end in zip(pending, bounds, bounds[1:]):
        if begin < end:
            batch.parts.append(ExecutedBatch(sorted_index[begin:end], decisions[begin:end]))
