"""One sample at a time, as soon as it can be answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.captured import CapturedLanes
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.samples import pad_token_of, unpad
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import ExitDecisions

logger = logging.getLogger(__name__)

Answer = tuple[int, Tensor, Tensor | None]
"""Exit, log-probabilities `(1, labels)`, score `(1,)`."""


@Engine.register("single")
class Single(Engine):
    """
    Low latency: takes the batches apart and runs sample by sample, without padding, until the policy lets it go.

    On a GPU, where launching a layer's kernels one by one takes longer than computing them, each exit's layers, and
    each exit's head and policy step, are captured once as a CUDA graph, for lengths that are multiples of
    `length_bucket`. The decision is taken beside the next exit's layers, which are already under way; what turns out
    superfluous runs on beside the next sample. Where capturing fails, the reason is logged and layers run uncaptured.

    Registered as an `Engine` with name "single".

    # Parameters

    length_bucket : `int`, optional (default = `16`)
        Captured lengths are multiples of this.
    max_lengths : `int`, optional (default = `16`)
        How many captured lengths are held; the one longest unused makes room.
    capture : `bool`, optional (default = `True`)
        Whether to capture graphs on a GPU.
    lookahead : `bool`, optional (default = `True`)
        Whether, with captured graphs, the next exit's layers start before the decision is known.
    """

    def __init__(
        self, length_bucket: int = 16, max_lengths: int = 16, capture: bool = True, lookahead: bool = True
    ) -> None:
        for name, value in (("length_bucket", length_bucket), ("max_lengths", max_lengths)):
            if value < 1:
                raise ConfigurationError(f"{name}: found {value}, allowed: 1 or more")
        self.length_bucket = length_bucket
        self.max_lengths = max_lengths
        self.capture = capture
        self.lookahead = lookahead
        self._lanes: CapturedLanes | None = None

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device, pad_token_id = device_of(network), pad_token_of(network)
        lanes = self._captured(network, policy, device) if self.capture and device.type == "cuda" else None
        seen = 0
        for batch in batches:
            if len(batch["input_ids"]) == 0:
                continue
            samples = unpad(batch, pad_token_id, seen)
            seen += len(samples)
            answers: list[Answer] = []
            for number in range(len(samples)):
                one = samples.batch(number, number + 1)
                answer = None if lanes is None else lanes.run(one)
                if answer is None:
                    answer = run_sample(network, policy, {name: value.to(device) for name, value in one.items()})
                answers.append(answer)
            yield ExecutedBatch(samples.index, as_decisions(answers))

    def _captured(self, network: SteppedNetwork, policy: ExitPolicy, device: torch.device) -> CapturedLanes:
        """The graphs of an earlier call if nothing that is baked into them has changed."""
        if self._lanes is None or not self._lanes.serves(network, policy):
            self._lanes = CapturedLanes(network, policy, device, self.length_bucket, self.max_lengths, self.lookahead)
        return self._lanes


def run_sample(network: SteppedNetwork, policy: ExitPolicy, batch: dict[str, Tensor]) -> Answer:
    """Runs a batch of one to the exit where the policy lets it go. Everything is on the network's device."""
    state = network.embed(batch)
    memory = policy.start(1, network.num_exits, state.hidden_states.device)
    last = network.num_exits
    for exit_number in range(1, last + 1):
        state = network.advance(exit_number, state)
        signals = network.exit_signals(exit_number, state)
        leaves, memory = policy.step(exit_number, signals, memory)
        if exit_number == last or leaves.item():
            break
    return exit_number, policy.output(exit_number, signals, memory), policy.score(memory)


def as_decisions(answers: list[Answer]) -> ExitDecisions:
    """The answers of at least one sample, put together on the CPU."""
    exits = torch.tensor([exit_number for exit_number, _, _ in answers])
    output = torch.cat([given for _, given, _ in answers]).double().cpu()
    scores = [score for _, _, score in answers if score is not None]
    together = torch.cat(scores).double().cpu() if len(scores) == len(answers) else None
    return ExitDecisions(exits, output.argmax(-1), output, together)
