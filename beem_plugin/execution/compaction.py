"""Batch by batch: whoever has left is taken out of the batch before the next layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.batch_decider import checked_decider, kernels_for
from beem_plugin.execution.captured_batches import CapturedBatches
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.ledger import Flags, Ledger
from beem_plugin.execution.recorder import CudaRecorder, Recorder
from beem_plugin.execution.samples import lengths_of, mask_here, to_device
from beem_plugin.exits.policy import ExitPolicy


@Engine.register("compaction")
class Compaction(Engine):
    """
    Runs each batch layer by layer and drops the samples that leave, so that the next layer only computes the others.
    Works for every backbone and every policy, at any batch size.

    The host asks who has left every `check_every` exits. On a GPU it reads the answer one exit later, while that exit's
    layers already run, so that the queue never runs dry; whoever left is computed a little too long, and their later
    answers are not used. When a batch loses its longest samples, it is also cut to the longest that remains.

    On a GPU, where launching small kernels one by one takes longer than computing them, batches of up to 16,384 tokens
    run through captured CUDA graphs, of one launch an exit, where the heads are the ordinary ones and the policy is one
    of those that `single` fuses: lengths are multiples of 16 then, and a batch shrinks to certain numbers of samples
    only, mostly powers of 2. A graph is captured when a length comes for the second time. Where capturing fails, the
    reason is logged and layers run uncaptured.

    Registered as an `Engine` with name "compaction", which is the default.

    # Parameters

    check_every : `int`, optional (default = `1`)
        Exits between two looks at who has left.
    min_leaving : `float`, optional (default = `0.0`)
        The share of the running batch that must have left before it is compacted; less is not worth the copy on a GPU
        whose layer takes the same time for a few samples more.
    capture : `bool`, optional (default = `True`)
        Whether to capture graphs on a GPU.
    """

    def __init__(self, check_every: int = 1, min_leaving: float = 0.0, capture: bool = True) -> None:
        if check_every < 1:
            raise ConfigurationError(f"check_every: found {check_every}, allowed: 1 or more")
        if not 0 <= min_leaving < 1:
            raise ConfigurationError(f"min_leaving: found {min_leaving}, allowed: 0 up to, not including, 1")
        self.check_every = check_every
        self.min_leaving = min_leaving
        self.capture = capture
        self._batches: CapturedBatches | None = None
        self._agreed: set[tuple[int, ...]] = set()
        self._refused: tuple[int, type] | None = None

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device = device_of(network)
        captured = self._captured(network, policy, device) if self._can_capture(device) else None
        try:
            yield from self._run(network, policy, batches, device, captured)
        finally:
            if captured is not None:
                captured.settle()

    def _run(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        batches: Iterable[dict[str, Tensor]],
        device: torch.device,
        captured: CapturedBatches | None,
    ) -> Iterator[ExecutedBatch]:
        seen = 0
        for batch in batches:
            size = len(batch["input_ids"])
            index = batch["index"].cpu() if "index" in batch else torch.arange(seen, seen + size)
            seen += size
            if size == 0:
                continue
            lengths = None
            if "attention_mask" in batch:
                lengths = torch.from_numpy(lengths_of(mask_here(batch["attention_mask"])))
                batch = without_padding_of_all(batch, int(lengths.max()))
            if captured is not None:
                whole = np.full(size, batch["input_ids"].shape[1]) if lengths is None else lengths.numpy()
                decisions = captured.run(batch, whole)
                if decisions is not None:
                    yield ExecutedBatch(index, decisions)
                    continue
            moved = {
                name: value.to(device, non_blocking=True)
                for name, value in batch.items()
                if name not in ("index", "label")
            }
            yield ExecutedBatch(index, run_batch(network, policy, moved, self.check_every, self.min_leaving, lengths))

    def _can_capture(self, device: torch.device) -> bool:
        return self.capture and device.type == "cuda"

    def _recorder(self, device: torch.device) -> Recorder:
        return CudaRecorder(device)

    def _captured(self, network: SteppedNetwork, policy: ExitPolicy, device: torch.device) -> CapturedBatches | None:
        """Graphs, those of an earlier call if nothing that is baked into them has changed; `None` without."""
        kernels = kernels_for(network, policy, device, self._agreed)
        refused = (id(network), type(policy))
        if kernels is None or self._refused == refused:
            return None
        known = self._batches
        if known is not None and known.serves(network, policy):
            return known
        self._batches = None  # before others need its memory
        decider = checked_decider(network, policy, device, kernels)
        if decider is None:
            self._refused = refused
            return None
        recorder = self._recorder(device)
        self._batches = CapturedBatches(network, policy, decider, device, recorder, self.check_every, self.min_leaving)
        return self._batches


def without_padding_of_all(batch: dict[str, Tensor], longest: int) -> dict[str, Tensor]:
    """The batch, cut to its longest sample."""
    shape = batch["input_ids"].shape
    if longest == shape[1]:
        return batch
    return {name: value[:, :longest] if value.shape == shape else value for name, value in batch.items()}


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
        `(batch,)` on the CPU: the samples' tokens, for cutting the batch without asking the device.
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
