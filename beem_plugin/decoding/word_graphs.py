"""
The pieces of which a word's way through the decoder is made, each a captured graph for so many rows.

    segment   blocks up to the next exit at which somebody may leave, its head, the policy's step
    answer    the words of those that leave, where the policy did not look at the vocabulary
    fill      what later words attend to in a block that earlier ones skipped

A graph is told by a table of pinned memory which rows it works on; slots that are not needed stand for the spare row.
It leaves its answers in pinned memory, where the host sees them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding import word_decision
from beem_plugin.decoding.graph_launch import Launch
from beem_plugin.decoding.row_store import RowStore, Slots, StoredWords
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.decoding.word_decision import ANSWER, RuleMemory
from beem_plugin.decoding.word_rule import WordRule, word_rule
from beem_plugin.execution.recorder import Recorder
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.vocabulary_heads import TiedHead


class WordGraphs:
    """
    The graphs of a network and a policy over a store, captured when they are first needed.

    # Parameters

    network : `CaptionNetwork`
    policy : `ExitPolicy`
        Bound and calibrated; its numbers become part of the graphs.
    store : `RowStore`
    skipped_blocks : `SkippedBlocks`
    recorder : `Recorder`
    """

    def __init__(
        self, network: Any, policy: ExitPolicy, store: RowStore, skipped_blocks: SkippedBlocks, recorder: Recorder
    ) -> None:
        self._network = weakref.ref(network)  # which keeps the graphs, and ends with its last user
        self.policy, self.store = policy, store
        self.skipped_blocks, self.recorder = skipped_blocks, recorder
        last = network.num_exits
        self.needed = asked_exits(network, policy)
        ends = [
            number
            for number in range(1, last + 1)
            if number == last or (self.needed[number - 1] and policy.can_leave(number))
        ]
        self.segments = [range(before + 1, end + 1) for before, end in zip([0, *ends], ends)]
        self.looks_back = bool(network.remembers) and policy.leaves_early
        rule = rule_of_kernels(network, policy, store.use_kernels)
        self.rule = (
            None if rule is None else RuleMemory(rule, store.capacity + 1, store.max_tokens, store.hidden.device)
        )
        # What the policy remembers of each row after an exit, and what heads do.
        self.states: dict[int, dict[str, Tensor]] = {}
        self.notes: dict[int, dict[str, Tensor]] = {}
        self.launches: dict[tuple[Any, ...], Launch] = {}

    @property
    def network(self) -> Any:
        return self._network()

    def layers(self, segment: int) -> range:
        """The blocks that it runs."""
        exits = self.segments[segment]
        return range(self._between(exits[0])[0], self._between(exits[-1])[-1] + 1)

    def segment(self, number: int, slots: int) -> Launch:
        """The graph of segment `number`, from 0, for so many rows."""
        return self._known(("segment", number, slots), lambda: self._segment(number))

    def answer(self, exit_number: int, slots: int) -> Launch:
        """The words of rows that leave at this exit."""
        return self._known(("answer", exit_number, slots), lambda: self._answer(exit_number))

    def fill(self, layer: int, slots: int) -> Launch:
        """Keys and values of so many words that have skipped block `layer`."""
        return self._known(("fill", layer, slots), lambda: self._fill(layer))

    def _known(self, key: tuple[Any, ...], make: Callable[[], Callable[..., bool]]) -> Launch:
        if key not in self.launches:
            self.launches[key] = self._capture(key[2], make())
        return self.launches[key]

    def _capture(self, slots: int, work: Callable[..., bool]) -> Launch:
        device, store = self.store.hidden.device, self.store
        table_here = self.recorder.pinned(3, slots, dtype=torch.int64)
        answers_here = self.recorder.pinned(slots, ANSWER, dtype=torch.float64)
        # What is tried while capturing touches the spare row alone.
        table_here.copy_(torch.from_numpy(store.spare_word).expand(3, slots))
        table = table_here.to(device)
        answers = torch.zeros(slots, ANSWER, dtype=torch.float64, device=device)
        says = False
        counted = 0

        def count(macs: int) -> None:
            nonlocal counted
            counted += macs

        def run() -> None:
            nonlocal says, counted
            counted = 0
            table.copy_(table_here, non_blocking=True)
            says = work(Slots(table[0], table[1], table[2]), answers, count)
            answers_here.copy_(answers, non_blocking=True)

        start = self.recorder.capture(run)
        held = (table_here, answers_here, table, answers, self.policy)  # a policy may keep tensors of its own
        return Launch(start, table_here.numpy(), answers_here.numpy(), says, counted / slots, self.recorder.wait, held)

    def _segment(self, number: int) -> Callable[..., bool]:
        network, store = self.network, self.store
        exits, layers = self.segments[number], self.layers(number)
        steps = [(exit_number, self._between(exit_number)) for exit_number in exits]
        is_last = exits[-1] == network.num_exits

        def work(slots: Slots, answers: Tensor, count: Callable[[int], None]) -> bool:
            says = False
            if exits.start == 1:
                embedded = store.decoder.embed_at(store.tokens.index_select(0, slots.rows), slots.positions)
                hidden, normed = embedded, None
            else:
                hidden, normed = store.states_and_normed(slots, layers[0])
            for exit_number, blocks in steps:
                for layer in blocks:
                    ends = layer == layers[-1]
                    words = StoredWords(store, slots, keeps=ends and not is_last)
                    norm = self._head_norm(exit_number) if ends else None
                    previous = hidden
                    hidden, normed = store.decoder.block_of_words(layer, hidden, normed, words, norm)
                if self.needed[exit_number - 1]:
                    said = normed if exit_number == exits[-1] else None
                    says = self._ask(exit_number, hidden, said, previous, slots, answers, count)
                elif self.looks_back:
                    self._note(exit_number, hidden, slots.rows, self._notes_before(exit_number, slots.rows))
            return says

        return work

    def _head_norm(self, exit_number: int) -> torch.nn.LayerNorm | None:
        """What the exit's head does before it multiplies with the vocabulary's matrix, if that is all it does."""
        head = self.network.exits[exit_number - 1]
        return head.norm if self.rule is not None and type(head) is TiedHead else None

    def _between(self, exit_number: int) -> range:
        """The blocks behind the exit before, up to this one's."""
        layers = self.network.exit_layers
        before = layers[exit_number - 2] if exit_number > 1 else 0
        return range(before + 1, layers[exit_number - 1] + 1)

    def _ask(
        self,
        exit_number: int,
        hidden: Tensor,
        normed: Tensor | None,
        previous: Tensor,
        slots: Slots,
        answers: Tensor,
        count: Callable[[int], None],
    ) -> bool:
        """Whether the answers hold the words of all rows."""
        network, policy, tokens, rows = self.network, self.policy, self.store.tokens, slots.rows
        is_last = exit_number == network.num_exits
        is_first = not any(self.needed[: exit_number - 1])
        if self.rule is not None:
            count(len(rows) * network.head_macs(exit_number))
            if normed is not None and self._head_norm(exit_number) is not None:
                logits = functional.linear(normed, network.exit_weight(exit_number)).float()
            else:
                logits = network.exit_logits(exit_number, hidden, {})
            self.rule.decide(exit_number, logits, rows, slots.positions, tokens, answers, is_first, is_last)
            return True
        before = self._notes_before(exit_number, rows)
        memory = dict(before)
        signals = network.token_signals(exit_number, hidden, previous, slots.positions, memory, count)
        state = ExitState()
        if not is_last or policy.needs_all_labels:
            if is_first:
                state = policy.start(len(rows), network.num_exits, rows.device)
            else:
                state = ExitState(**taken(latest(self.states, exit_number), rows))
            leaves, state = policy.step(exit_number, signals, state)
        answers[:, 0] = 1.0 if is_last else leaves
        says = True
        if policy.needs_all_labels:
            word_decision.say(policy.output(exit_number, signals, state).float(), rows, tokens, answers)
        elif is_last or "logits" in vars(signals):
            word_decision.say(signals.logits.float().log_softmax(-1), rows, tokens, answers)
        else:
            says = False
        if not is_last:
            self._keep(self.states, exit_number, rows, state.tensors)
            if self.looks_back:
                self._note(exit_number, hidden, rows, memory)
            elif memory.keys() != before.keys():
                self._keep(self.notes, exit_number, rows, memory)
        return says

    def _answer(self, exit_number: int) -> Callable[..., bool]:
        network, store = self.network, self.store

        def work(slots: Slots, answers: Tensor, count: Callable[[int], None]) -> bool:
            hidden, rows = store.states(slots), slots.rows
            count(len(rows) * network.head_macs(exit_number))
            logits = network.exit_logits(exit_number, hidden, self._notes_before(exit_number, rows))
            word_decision.say(logits.float().log_softmax(-1), rows, store.tokens, answers)
            return True

        return work

    def _fill(self, layer: int) -> Callable[..., bool]:
        def work(slots: Slots, answers: Tensor, count: Callable[[int], None]) -> bool:
            self.skipped_blocks.fill_words(layer, slots, self.store)
            return False

        return work

    def _notes_before(self, exit_number: int, rows: Tensor) -> dict[str, Tensor]:
        """What heads of earlier exits have left for this one."""
        return taken(latest(self.notes, exit_number), rows)

    def _note(self, exit_number: int, hidden: Tensor, rows: Tensor, memory: dict[str, Tensor]) -> None:
        if exit_number < self.network.num_exits:
            self.network.remember(exit_number, hidden, memory)
            self._keep(self.notes, exit_number, rows, memory)

    def _keep(
        self, kept: dict[int, dict[str, Tensor]], exit_number: int, rows: Tensor, tensors: dict[str, Tensor]
    ) -> None:
        """Stores what belongs to the rows, in buffers that are made when the first graph asks for them."""
        if exit_number not in kept:
            size = self.store.capacity + 1
            kept[exit_number] = {name: value.new_zeros(size, *value.shape[1:]) for name, value in tensors.items()}
        for name, value in tensors.items():
            kept[exit_number][name].index_copy_(0, rows, value)


def asked_exits(network: Any, policy: ExitPolicy) -> list[bool]:
    """Whether words are asked for at each exit."""
    last = network.num_exits
    makes_shortlist = network.shortlist is not None and policy.leaves_early
    return [
        number == last or policy.needs(number) or (number == 1 and makes_shortlist) for number in range(1, last + 1)
    ]


def rule_of_kernels(network: Any, policy: ExitPolicy, use_kernels: bool) -> WordRule | None:
    """The policy as the kernel of `word_decision` takes it; `None` where that does not serve."""
    if word_decision.triton is None or not use_kernels:
        return None
    if network.shortlist is not None or network.remembers or policy.needs_all_labels:
        return None
    return word_rule(policy)


def latest(kept: dict[int, dict[str, Tensor]], exit_number: int) -> dict[str, Tensor]:
    """What was kept last before this exit."""
    return kept[max(before)] if (before := [number for number in kept if number < exit_number]) else {}


def taken(tensors: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: value.index_select(0, rows) for name, value in tensors.items()}
