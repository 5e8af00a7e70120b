"""Batch by batch: samples that have exited are removed from the batch before the next layer."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import check_at_least, check_number
from beem_plugin.common.transfer import HostCopy, to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.chunks import divided
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.exit_tracker import ExitTracker
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy


@Engine.register("compaction")
class Compaction(Engine):
    """
    Runs each batch layer by layer and drops the samples that exit, so that the next layer computes the others only.
    Works for every backbone and every policy, at any batch size.

    The host reads the exit decisions every `check_every` exits. On a GPU it reads them one exit late, while that exit's
    layers already run, so that the device never waits for the host; an exited sample is then computed one exit too long
    and its later outputs are ignored. When a batch loses its longest samples, it is cut to the longest that remains.

    Registered as an `Engine` with name "compaction".

    # Parameters

    check_every : `int`, optional (default = `1`)
        Exits between two reads of the exit decisions.
    min_leaving : `float`, optional (default = `0.0`)
        The share of the batch that must have exited before it is compacted. Compaction costs a copy, which may outweigh
        a few samples less on a GPU.
    max_tokens : `int`, optional (default = `16384`)
        Batches of more tokens, padding included, are sorted by length and divided.
    capture : `bool`, optional (default = `True`)
        Has no effect; accepted for configs of earlier releases.
    """

    def __init__(
        self, check_every: int = 1, min_leaving: float = 0.0, max_tokens: int = 16384, capture: bool = True
    ) -> None:
        check_at_least(1, check_every=check_every, max_tokens=max_tokens)
        check_number("min_leaving", min_leaving, high=1, open_high=True)
        self.check_every = check_every
        self.min_leaving = min_leaving
        self.max_tokens = max_tokens

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        compiled = self.prepare(network, policy)
        for batch in batches:
            if len(batch) and len(batch) * int(batch.lengths.max()) > self.max_tokens:
                batch = batch.select(batch.lengths.argsort(stable=True))
            # Of samples sorted by length, `divided` counts tokens without padding; there is little of it.
            for part in divided(batch, self.max_tokens):
                running = RunningBatch(compiled, part, self.min_leaving)
                decisions = running.run(self.check_every, compiled.device.type == "cuda")
                policy.observe(decisions.exits, decisions.log_probabilities)
                yield ExecutedBatch(part.index, decisions)


class RunningBatch:
    """A batch on its way through the network."""

    def __init__(self, network: CompiledNetwork, samples: RaggedBatch, min_leaving: float) -> None:
        self.network, self.lengths, self.min_leaving = network, samples.lengths, min_leaving
        device = network.device
        self.state = network.embed({name: to_device(value, device) for name, value in samples.padded().items()})
        self.tracker = ExitTracker(network, len(samples), int(samples.lengths.max()))
        self.is_done = False

    def run(self, check_every: int, reads_late: bool) -> ExitDecisions:
        """`reads_late`: whether exit decisions are read one exit late, when a device has them ready."""
        network, tracker = self.network, self.tracker
        pending: HostCopy | None = None
        may_have_exited = False
        for exit_number in range(1, network.num_exits + 1):
            self.state = network.advance(exit_number, self.state)
            if network.needed[exit_number]:
                tracker.step(exit_number, network.exit_signals(exit_number, self.state))
            may_have_exited |= network.can_exit[exit_number]
            if pending is not None:  # copied at an earlier exit, and there by now
                self.remove(pending.read())
                pending = None
            if may_have_exited and exit_number % check_every == 0 and exit_number < network.num_exits:
                may_have_exited = False
                pending = HostCopy(tracker.exited)
                if not reads_late:
                    self.remove(pending.read())
                    pending = None
            if self.is_done:
                break
        return tracker.decisions()

    def remove(self, exited: Tensor) -> None:
        """`exited`: `(active,)` bool on the CPU."""
        count = int(exited.sum())
        self.is_done = count == len(exited)
        if self.is_done or count == 0 or count < self.min_leaving * len(exited):
            return
        kept = (~exited).nonzero().squeeze(1)
        kept_on_device = to_device(kept, self.network.device)
        self.tracker.keep(kept_on_device)
        self.lengths = self.lengths[kept]
        self.state = self.state.index_select(kept_on_device).narrow(int(self.lengths.max()))
