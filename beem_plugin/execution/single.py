"""One sample at a time, as soon as it can be answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.captured import CapturedLanes
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.lane import HEADS
from beem_plugin.execution.sample_runner import Answer, SampleRunner
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import prediction_of

logger = logging.getLogger(__name__)


@Engine.register("single")
class Single(Engine):
    """
    Low latency: runs sample by sample, without padding, until the sample exits.

    On a GPU, where launching a layer's kernels one by one takes longer than computing them, the layers, heads and
    policy steps are captured as CUDA graphs, cut where the policy can let a sample go, for lengths that are multiples
    of `length_bucket`. Each decision is taken beside the next exit's layers and written where the host sees it; what
    turns out superfluous runs on beside the next sample. Where capturing fails, the reason is logged and layers run
    uncaptured.

    Heads of exits where the policy cannot let anybody go, and whose answer it does not remember, are not computed.

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
    check_every : `int`, optional (default = `1`)
        How many exits at which somebody can leave share a captured graph. An answer is seen as soon as it is there, but
        the graph runs to its end.
    heads : `str`, optional (default = `"fused"`)
        How captured graphs compute heads and policy steps: `"fused"`, in two kernels of our own where the head is the
        ordinary one and the policy is BEEM, max_probability, margin, entropy, patience, fixed_exit or final;
        `"compiled"`, by torch.compile; `"plain"`, as they are. What cannot be fused is plain.
    plain_numbers : `bool`, optional (default = `True`)
        Whether, on a CPU, policies that can are stepped with numbers instead of tensors.
    """

    def __init__(
        self,
        length_bucket: int = 16,
        max_lengths: int = 16,
        capture: bool = True,
        lookahead: bool = True,
        check_every: int = 1,
        heads: str = "fused",
        plain_numbers: bool = True,
    ) -> None:
        least_one = (("length_bucket", length_bucket), ("max_lengths", max_lengths), ("check_every", check_every))
        for name, value in least_one:
            if value < 1:
                raise ConfigurationError(f"{name}: found {value}, allowed: 1 or more")
        if heads not in HEADS:
            raise ConfigurationError(not_allowed("heads", heads, HEADS))
        self.length_bucket = length_bucket
        self.max_lengths = max_lengths
        self.capture = capture
        self.lookahead = lookahead
        self.check_every = check_every
        self.heads = heads
        self.plain_numbers = plain_numbers
        self._lanes: CapturedLanes | None = None
        self._agreed: set[tuple[int, ...]] = set()

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device = device_of(network)
        lanes = self._captured(network, policy, device) if self.capture and device.type == "cuda" else None
        runner = SampleRunner(network, policy, device, self.plain_numbers)
        for batch in batches:
            if len(batch) == 0:
                continue
            answers: list[Answer] = []
            for number in range(len(batch)):
                one = batch.padded(number, number + 1)
                answer = None if lanes is None else lanes.run(one)
                if answer is None:
                    moved = one if device.type == "cpu" else {name: value.to(device) for name, value in one.items()}
                    answer = runner(moved, self._agreed)
                answers.append(answer)
            yield ExecutedBatch(batch.index, as_decisions(answers))

    def _captured(self, network: SteppedNetwork, policy: ExitPolicy, device: torch.device) -> CapturedLanes:
        """The graphs of an earlier call if nothing that is baked into them has changed."""
        if self._lanes is None or not self._lanes.serves(network, policy):
            self._lanes = CapturedLanes(
                network,
                policy,
                device,
                self.length_bucket,
                self.max_lengths,
                self.lookahead,
                self.check_every,
                self.heads,
            )
        return self._lanes


def as_decisions(answers: list[Answer]) -> ExitDecisions:
    """The answers of at least one sample, put together on the CPU."""
    if len(answers) == 1:
        exit_number, given, score = answers[0]
        given = given.double().cpu()
        score = None if score is None else score.double().cpu()
        if given.shape[1] == 1:
            return ExitDecisions(torch.tensor([exit_number]), prediction_of(given), given, score)
        numbers = torch.from_numpy(np.array((exit_number, given.numpy()[0].argmax())))
        return ExitDecisions(numbers[:1], numbers[1:], given, score)
    exits = torch.tensor([exit_number for exit_number, _, _ in answers])
    output = torch.cat([given for _, given, _ in answers]).double().cpu()
    scores = [score for _, _, score in answers if score is not None]
    together = torch.cat(scores).double().cpu() if len(scores) == len(answers) else None
    return ExitDecisions(exits, prediction_of(output), output, together)
