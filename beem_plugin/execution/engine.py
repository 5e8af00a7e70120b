"""Runs samples through a multi-exit network under an exit policy, and computes no layers after their exit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import Registrable
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy, check_signals


@dataclass
class ExecutedBatch:
    """Exit and output of each sample, on the CPU; `index` `(samples,)` int64: its position in the input."""

    index: Tensor
    decisions: ExitDecisions


class Engine(Registrable):
    """Runs a network under an exit policy. All engines return the same exits and labels; they differ in speed."""

    default_implementation = "compaction"

    use_kernels: bool | None = None
    policy_kernel: bool = True
    """See `CompiledNetwork`."""
    _compiled: CompiledNetwork | None = None

    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        """
        Yields every sample of `batches` exactly once, in any order. Sorting, padding and packing are the engine's.

        # Parameters

        network : `SteppedNetwork`
            In evaluation mode, on the device and in the precision in which it is to run. Layers compute in the weights'
            precision; exits are always decided in the decision precision.
        policy : `ExitPolicy`
        batches : `Iterable[RaggedBatch]`
            On the CPU, of any sizes, in the order of the input.
        """
        raise TypeError(f"{type(self).__name__} does not define run")

    def prepare(self, network: SteppedNetwork, policy: ExitPolicy) -> CompiledNetwork:
        """Checks and binds `policy`, and prepares both for inference, again only if one of them has changed."""
        policy.bind(network.exit_layers, network.num_labels)
        check_signals(policy, set(network.available_signals), "the model")
        policy.check_calibrated()
        if self._compiled is None or not self._compiled.origin.matches(network, policy):
            self._compiled = None  # frees its memory first
            self._compiled = CompiledNetwork(network, policy, self.use_kernels, self.policy_kernel)
        return self._compiled


def gather_decisions(
    runs: Iterable[ExecutedBatch], num_labels: int, total: int | None = None
) -> tuple[Tensor, ExitDecisions]:
    """
    What `Engine.run` returns, in the order of the input: the sorted indices `(samples,)` int64, and their decisions.
    Another number of samples than `total`, or a duplicate, is an error; `num_labels` is for the shape without samples.
    """
    done = list(runs)
    if not done:
        empty = torch.zeros(0, dtype=torch.int64)
        return empty, ExitDecisions(empty, empty, torch.zeros(0, num_labels, dtype=torch.float64), None)
    index = torch.cat([batch.index for batch in done])
    order = index.argsort(stable=True)
    index = index[order]
    if bool((index[1:] == index[:-1]).any()) or (total is not None and len(index) != total):
        raise RuntimeError(
            f"the engine returned {len(index)} results ({len(index.unique())} unique) for {total} samples"
        )
    return index, ExitDecisions.join([batch.decisions for batch in done])[order]


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


FILE_ENGINE = {"type": "depth_pools"}
"""The engine for files unless the config or a flag names another: it has the highest throughput."""

REQUEST_ENGINE = {"type": "auto"}
"""The engine for inputs of any size, as a server gets them, unless the config or a flag names another."""


def engine_block(config: Mapping[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The block of the engine that an archive's config names for the model, or else `default`."""
    model = config.get("model")
    given = model.get("engine") if isinstance(model, Mapping) else None
    return {"type": given} if isinstance(given, str) else dict(given or default)


def build_file_engine(config: Mapping[str, Any]) -> Engine:
    """A new engine for whole files."""
    return Engine.from_params(engine_block(config, FILE_ENGINE))


def check_engine(name: str, flag: str) -> None:
    """Raises a `ConfigurationError` that names `flag` if `name` is not a registered engine."""
    try:
        Engine.from_params({"type": name})
    except ConfigurationError:
        raise ConfigurationError(not_allowed(flag, name, Engine.list_available())) from None
