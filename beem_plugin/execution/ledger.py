"""Who of a batch or window is still computed, and what those who have left were given."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.transfer import to_pinned
from beem_plugin.execution.answers import Answers
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals


class Ledger:
    """
    Steps the policy over the samples that are still computed: those that stay, and those that have left but were not
    yet taken out of the computation. Nothing here asks the device anything.

    # Parameters

    policy : `ExitPolicy`
        Bound.
    samples : `int`
    num_exits, num_labels : `int`
    device : `torch.device`
    """

    def __init__(self, policy: ExitPolicy, samples: int, num_exits: int, num_labels: int, device: torch.device) -> None:
        self.policy = policy
        self.num_exits = num_exits
        self.answers = Answers(samples, num_labels, device)
        self.memory = policy.start(samples, num_exits, device)
        self.rows = torch.arange(samples, device=device)
        self.left = torch.zeros(samples, dtype=torch.bool, device=device)
        self.exits = torch.zeros(samples, dtype=torch.int64, device=device)
        self.output: Tensor | None = None
        self.scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def step(self, exit_number: int, signals: ExitSignals) -> None:
        """Notes who leaves at `exit_number`, and with what; at the last exit everybody does."""
        leaves, self.memory = self.policy.step(exit_number, signals, self.memory)
        new = ~self.left if exit_number == self.num_exits else leaves & ~self.left
        given = self.policy.output(exit_number, signals, self.memory).to(self.answers.output.dtype)
        score = self.policy.score(self.memory)
        self.exits = torch.where(new, exit_number, self.exits)
        self.output = given if self.output is None else torch.where(new[:, None], given, self.output)
        if score is not None:
            score = score.to(given.dtype)
            self.scores = score if self.scores is None else torch.where(new, score, self.scores)
        self.left = self.left | new

    def take_out(self, leaving: Tensor, kept: Tensor) -> None:
        """
        # Parameters

        leaving, kept : `Tensor`
            `(..,)` int64, places among those still computed: who is taken out for good, and the others.
        """
        self._store(leaving)
        self.rows, self.left, self.exits = self.rows[kept], self.left[kept], self.exits[kept]
        self.memory = self.memory.index_select(kept)
        self.output = None if self.output is None else self.output[kept]
        self.scores = None if self.scores is None else self.scores[kept]

    def settle(self) -> None:
        """Everybody who is still here has left."""
        self._store(torch.arange(len(self), device=self.rows.device))
        self.rows = self.rows[:0]

    def _store(self, chosen: Tensor) -> None:
        assert self.output is not None, "exit 1 has been stepped"
        scores = None if self.scores is None else self.scores[chosen]
        self.answers.store(self.rows[chosen], self.exits[chosen], self.output[chosen], scores)


class Flags:
    """
    Reads a bool tensor. On a GPU the copy is started when asked and waited for when read, so that the time between is
    not lost.

    # Parameters

    device : `torch.device`
    """

    def __init__(self, device: torch.device) -> None:
        self.is_immediate = device.type != "cuda"
        self.copied: Tensor | None = None
        self.event = None if self.is_immediate else torch.cuda.Event()

    @property
    def pending(self) -> bool:
        return self.copied is not None

    def ask(self, flags: Tensor) -> None:
        if self.event is None:
            self.copied = flags.cpu()
            return
        self.copied = to_pinned(flags)
        self.event.record()

    def read(self) -> Tensor:
        """What was asked for last, on the CPU."""
        assert self.copied is not None
        if self.event is not None:
            self.event.synchronize()
        flags, self.copied = self.copied, None
        return flags
