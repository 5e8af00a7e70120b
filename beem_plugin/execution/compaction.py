"""Batch by batch: samples that have exited are removed from the batch before the next layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.transfer import to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.ledger import Flags, Ledger
from beem_plugin.execution.windows import divided
from beem_plugin.exits.policy import ExitPolicy


@Engine.register("compaction")
class Compaction(Engine):
    """
    Runs each batch layer by layer and drops the samples that exit, so that the next layer computes the others only.
    Works for every backbone and every policy, at any batch size.

    The host reads the exit decisions every `check_every` exits. On a GPU it reads them one exit late, while that exit's
    layers already run, so that the device never waits for the host; an exited sample is then computed one exit too long
    and its later outputs are ignored. When a batch loses its longest samples, it is cut to the longest that remains.

    Registered as an `Engine` with name "compaction", which is the default.

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
        for name, value in (("check_every", check_every), ("max_tokens", max_tokens)):
            if value < 1:
                raise ConfigurationError(f"{name}: found {value}, allowed: 1 or more")
        if not 0 <= min_leaving < 1:
            raise ConfigurationError(f"min_leaving: found {min_leaving}, allowed: 0 up to, not including, 1")
        self.check_every = check_every
        self.min_leaving = min_leaving
        self.max_tokens = max_tokens

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device = device_of(network)
        for batch in batches:
            for part in self._parts(batch):
                inputs = {name: value.to(device, non_blocking=True) for name, value in part.padded().items()}
                decisions = run_batch(network, policy, inputs, self.check_every, self.min_leaving, part.lengths)
                yield ExecutedBatch(part.index, decisions)

    def _parts(self, batch: RaggedBatch) -> Iterator[RaggedBatch]:
        if len(batch) and len(batch) * int(batch.lengths.max()) > self.max_tokens:
            batch = batch.select(batch.lengths.argsort(stable=True))
        # Of samples sorted by length, `divided` counts tokens without padding; there is little of it.
        yield from divided(batch, self.max_tokens)


def run_batch(
    network: SteppedNetwork,
    policy: ExitPolicy,
    batch: dict[str, Tensor],
    check_every: int = 1,
    min_leaving: float = 0.0,
    lengths: Tensor | None = None,
) -> ExitDecisions:
    """
    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
        Bound to the network's exits.
    batch : `dict[str, Tensor]`
        On the network's device, at least one sample.
    check_every : `int`, optional (default = `1`)
    min_leaving : `float`, optional (default = `0.0`)
    lengths : `Tensor`, optional (default = `None`)
        `(batch,)` on the CPU: the samples' tokens, for cutting the batch without synchronising with the device.
    """
    state = network.embed(batch)
    device = state.hidden_states.device
    ledger = Ledger(policy, state.hidden_states.shape[0], network.num_exits, network.num_labels, device)
    flags = Flags(device)
    may_have_left = False

    def compact(left: Tensor) -> None:
        nonlocal state, lengths
        leaving = int(left.sum())
        if leaving == len(left):
            ledger.settle()
            return
        if leaving == 0 or leaving < min_leaving * len(left):
            return
        kept, gone = (~left).nonzero().squeeze(1), left.nonzero().squeeze(1)
        kept_here = to_device(kept, device)
        ledger.take_out(to_device(gone, device), kept_here)
        state = state.index_select(kept_here)
        if lengths is not None:
            lengths = lengths[kept]
            state = state.narrow(int(lengths.max()))

    for exit_number in range(1, network.num_exits + 1):
        state = network.advance(exit_number, state)
        is_last = exit_number == network.num_exits
        can_leave = not is_last and policy.can_leave(exit_number)
        if is_last or can_leave or policy.needs(exit_number):
            ledger.step(exit_number, network.exit_signals(exit_number, state))
        may_have_left |= can_leave
        if flags.pending:
            compact(flags.read())
        if not is_last and may_have_left and exit_number % check_every == 0 and len(ledger):
            may_have_left = False
            flags.ask(ledger.left)
            if flags.is_immediate:
                compact(flags.read())
        if len(ledger) == 0:
            break
    if len(ledger):
        ledger.settle()
    return ledger.answers.decisions()
