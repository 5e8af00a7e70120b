"""Tracks active samples and stores the outputs of samples that have exited."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.transfer import HostCopy
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.exits.signals import ExitSignals, decision_dtype


class ExitTracker:
    """
    The active samples of a batch or window, and the results of all samples. A sample that has exited stays active until
    it is removed; its later results are ignored. The host does not wait for the device here.
    """

    def __init__(self, network: CompiledNetwork, samples: int, longest: int) -> None:
        self.decider, self.num_exits, self.per_token = network.decider, network.num_exits, network.output_per_token
        device, outputs = network.device, longest if self.per_token else network.num_labels
        self.memory = self.decider.start(samples)
        self.rows = torch.arange(samples, device=device)
        """`(active,)` int64: places of the active samples in `results`."""
        self.exited = torch.zeros(samples, dtype=torch.bool, device=device)
        """`(active,)`"""
        # Columns: exit, score, output. One tensor, so that one copy brings them to the host.
        self.results = torch.zeros(samples, 2 + outputs, dtype=decision_dtype(device), device=device)

    def __len__(self) -> int:
        return len(self.rows)

    def step(self, exit_number: int, signals: ExitSignals) -> None:
        """Steps the policy and stores the results of active samples that exit; at the last exit all do."""
        found, self.memory = self.decider.step(exit_number, signals, self.memory)
        exits = torch.ones_like(self.exited) if exit_number == self.num_exits else found[:, 0] != 0
        new = exits & ~self.exited
        found[:, 0] = exit_number
        if found.shape[1] < self.results.shape[1]:  # outputs of tokens, and none of the active samples is the longest
            found = pad(found, (0, self.results.shape[1] - found.shape[1]), value=-1)
        stored = self.results.index_select(0, self.rows)
        self.results.index_copy_(0, self.rows, torch.where(new[:, None], found, stored))
        self.exited = self.exited | exits

    def keep(self, kept: Tensor) -> None:
        """Removes all active samples but those at `kept`, `(kept,)` int64 on the device, for good."""
        self.rows, self.exited = self.rows.index_select(0, kept), self.exited.index_select(0, kept)
        self.memory = (
            self.memory.index_select(0, kept) if isinstance(self.memory, Tensor) else (self.memory.index_select(kept))
        )

    def fetch(self) -> HostCopy:
        """Starts the copy of the results to the host, for `decisions`."""
        return HostCopy(self.results)

    def decisions(self, fetched: HostCopy | None = None) -> ExitDecisions:
        """The results, on the CPU. All samples must have exited."""
        results = (fetched or self.fetch()).read()
        exits, scores, output = results[:, 0].long(), results[:, 1], results[:, 2:].contiguous()
        if not bool((exits > 0).all()):
            raise RuntimeError(f"{int((exits == 0).sum())} of {len(exits)} samples came out of no exit")
        found = scores.contiguous() if self.decider.has_score else None
        return ExitDecisions.of_output(exits, output, found, self.per_token)
