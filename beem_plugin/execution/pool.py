"""One window of depth pools: its samples are computed from exit to exit together."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.transfer import HostCopy, to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.chunks import Chunk, Layout
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.exit_tracker import ExitTracker
from beem_plugin.execution.packed_chunks import PackedLayout
from beem_plugin.execution.padded_chunks import PaddedLayout
from beem_plugin.exits.signals import ExitSignals


def pool(
    network: CompiledNetwork, samples: RaggedBatch, tokens_per_chunk: int, call_tokens: int, min_leaving: float
) -> Generator[None, None, ExitDecisions]:
    """
    Yields after the work of each exit has been queued, before its results are waited for, so that the device computes
    other windows meanwhile. Returns the decisions in the order of `samples`.
    """
    layout: Layout = PaddedLayout(network, tokens_per_chunk, call_tokens)
    if network.can_pack(int(samples.lengths[-1])):
        layout = PackedLayout(network, tokens_per_chunk)
    device = network.device
    tracker = ExitTracker(network, len(samples), int(samples.lengths[-1]))
    # Chunks are made one by one: the device computes the first while the host prepares the next.
    made = layout.first(samples)
    for exit_number in range(1, network.num_exits + 1):
        chunks = []
        for chunk in made:
            chunk.state = network.advance(exit_number, chunk.state)
            chunks.append(chunk)
        made = iter(chunks)
        if network.needed[exit_number]:
            tracker.step(exit_number, signals_of(network, exit_number, chunks))
        if not network.can_exit[exit_number]:
            continue
        copied = HostCopy(tracker.exited)
        yield
        exited = copied.read()
        lengths = torch.cat([chunk.lengths for chunk in chunks])
        leaving = int(lengths[exited].sum())
        if bool(exited.all()):
            break
        if leaving == 0 or leaving < min_leaving * int(lengths.sum()):
            continue
        kept = (~exited).nonzero().squeeze(1)
        kept_on_device = to_device(kept, device)
        tracker.keep(kept_on_device)
        made = layout.repack(chunks, kept, kept_on_device)
    fetched = tracker.fetch()
    yield
    return tracker.decisions(fetched)


def signals_of(network: CompiledNetwork, exit_number: int, chunks: Sequence[Chunk]) -> ExitSignals:
    """The signals of the samples of all chunks."""
    found = [network.exit_signals(exit_number, chunk.state) for chunk in chunks]
    return found[0] if len(found) == 1 else type(found[0]).join(found)
