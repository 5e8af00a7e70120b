"""Low latency for a few samples, throughput for many."""

from collections.abc import Iterable, Iterator
from itertools import chain

from beem_plugin.common.errors import check_at_least
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.depth_pools import DepthPools
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.single import Single
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policy import ExitPolicy

FEW = {"cuda": 64, "cpu": 1}
"""Samples up to which running them one by one takes less time than together."""


@Engine.register("auto")
class Auto(Engine):
    """
    Runs an input of few samples as `single` does and a larger one as `depth_pools` does, for servers and programs that
    get both. On a GPU the first of several small inputs in a row still runs as `depth_pools`, because capturing graphs
    takes longer than a few samples and pays only when more of them follow.

    Registered as an `Engine` with name "auto".

    # Parameters

    few : `int`, optional (default = 64 on a GPU, 1 on a CPU)
        The largest number of samples of an input that are run one by one.
    capture : `bool`, optional (default = `True`)
        See `Single`.
    """

    def __init__(self, few: int | None = None, capture: bool = True) -> None:
        check_at_least(0, few=few)
        self.few, self.capture = few, capture
        self.single, self.depth_pools = Single(), DepthPools()
        self._last_was_small = False

    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        kind = device_of(network).type
        few = FEW.get(kind, 1) if self.few is None else self.few
        batches, read, samples = iter(batches), [], 0
        while samples <= few and (batch := next(batches, None)) is not None:
            read.append(batch)
            samples += len(batch)
        if not samples:
            return
        is_small = samples <= few
        one_by_one = is_small and (self._last_was_small or kind != "cuda")
        self._last_was_small, self.single.capture = is_small, self.capture
        engine = self.single if one_by_one else self.depth_pools
        yield from engine.run(network, policy, chain(read, batches))
