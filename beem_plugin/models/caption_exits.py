"""Exits over a vocabulary, for whole captions and for one token at a time."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones.vision_encoder_decoder import CaptionBackbone
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.branches import TransformerBranch
from beem_plugin.exits.branches.branch import KeyValueStore
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signal_modules import ExitView
from beem_plugin.exits.token_signals import TokenSignals, TokenSummary, shortlist_summary
from beem_plugin.exits.vocabulary_heads import VocabularyHead
from beem_plugin.exits.vocabulary_heads.head import Memory


class CaptionExits(torch.nn.Module):
    """The exits of a `MultiExitDecoder`, which builds them."""

    backbone: CaptionBackbone
    exits: torch.nn.ModuleList
    exit_layers: list[int]
    shortlist: int | None
    signal_modules: torch.nn.ModuleDict

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def num_labels(self) -> int:
        return self.backbone.decoder.vocab_size

    @property
    def available_signals(self) -> set[str]:
        """Names of the signals of `token_signals` that are not computed from logits."""
        return {"similarity", "position", *self.signal_modules}

    def head(self, exit_number: int) -> VocabularyHead:
        return cast(VocabularyHead, self.exits[exit_number - 1])

    @property
    def attending_branches(self) -> dict[int, TransformerBranch]:
        """The branches by exit number in which tokens attend to earlier ones: decoding stores their keys and values."""
        branches = ((number, self.head(number).branch) for number in range(1, self.num_exits))
        return {number: branch for number, branch in branches if isinstance(branch, TransformerBranch)}

    def exit_input(self, exit_number: int, hidden: Tensor, store: KeyValueStore | None = None) -> Tensor:
        """
        What the exit's head reads of `(batch, tokens, hidden)` outputs of its block, of whole captions or, with `store`
        (see `Branch.causal`), one token of each: the output of its branch, if it has one.
        """
        branch = self.head(exit_number).branch
        return hidden if branch is None else branch.causal(hidden, store)

    def branch_macs(self, exit_number: int, tokens: int) -> int:
        """Multiply-accumulates of `exit_input` for a token that attends to `tokens` tokens, itself included."""
        branch = self.head(exit_number).branch
        if branch is None:
            return 0
        linear = [part for part in branch.modules() if isinstance(part, torch.nn.Linear)]
        attention = 2 * tokens * branch.width if branch.mixes_tokens else 0
        return sum(part.in_features * part.out_features for part in linear) + attention

    def remember(self, exit_number: int, read: Tensor, memory: dict[str, Tensor]) -> None:
        """Adds to `memory` what the next exit's head reads; called at every early exit if the heads remember."""
        memory.update(self.head(exit_number).memory_after(read, memory))

    def exit_weight(self, exit_number: int) -> Tensor:
        """`(vocabulary, size)`"""
        return self.head(exit_number).weight(self.backbone.decoder.output_weight)

    def exit_logits(self, exit_number: int, read: Tensor, memory: Memory | None = None) -> Tensor:
        """`(tokens, vocabulary)` float32"""
        features = self.head(exit_number).features(read, memory)
        return functional.linear(features, self.exit_weight(exit_number)).float()

    def head_macs(self, exit_number: int, num_tokens: int | None = None) -> int:
        """Multiply-accumulates of an exit's logits for a token, over the vocabulary or `num_tokens` entries of it."""
        total, size = self.exit_weight(exit_number).shape
        return self.head(exit_number).features_macs() + (total if num_tokens is None else num_tokens) * size

    def predicted_error(self, exit_number: int, hidden: Tensor) -> Tensor:
        """`(tokens,)`"""
        empty = hidden.new_zeros(len(hidden), 0)
        view = ExitView(exit_number, empty, hidden, hidden.unsqueeze(1), empty.bool())
        return self.signal_modules["predicted_error"](view)

    def token_signals(
        self,
        exit_number: int,
        hidden: Tensor,
        previous: Tensor,
        position: Tensor,
        memory: dict[str, Tensor],
        count: Callable[[int], None] = lambda macs: None,
        read: Tensor | None = None,
    ) -> TokenSignals:
        """
        The signals of an exit, in tracing and decoding. `hidden` and `previous` are `(tokens, hidden)` output and input
        of its block, `position` the `(tokens,)` places in the captions, from 0. `memory` holds `(tokens, ...)` tensors
        of earlier exits; this exit adds its own. `count` is called with the multiply-accumulates of each head that is
        computed. `read` is the `exit_input`, required if tokens attend to others in the exit's branch.
        """
        read = self.exit_input(exit_number, hidden) if read is None else read
        tokens = len(hidden)
        # Signals are computed when they are read, which may be after this exit has added to the memory.
        before = dict(memory)

        def logits() -> Tensor:
            count(tokens * self.head_macs(exit_number))
            return self.exit_logits(exit_number, read, before)

        extra: dict[str, Callable[[], Tensor]] = {
            "similarity": lambda: functional.cosine_similarity(hidden.float(), previous.float(), dim=-1),
            "position": lambda: position.float(),
        }
        if "predicted_error" in self.signal_modules:
            extra["predicted_error"] = lambda: self.predicted_error(exit_number, hidden).float()
        signals = TokenSignals(tokens, hidden.device, logits, extra=extra)
        if self.shortlist is None or exit_number == self.num_exits:
            return signals
        if exit_number == 1:
            top = signals.logits.topk(self.shortlist, dim=-1)
            memory["candidates"] = top.indices  # (tokens, shortlist)
            memory["mass"] = (top.values.logsumexp(-1) - signals.logits.logsumexp(-1)).exp()
            return signals
        candidates, mass = memory["candidates"], memory["mass"]

        def summary() -> TokenSummary:
            count(tokens * self.head_macs(exit_number, self.shortlist))
            features = self.head(exit_number).features(read, before)
            rows = functional.embedding(candidates, self.exit_weight(exit_number))  # (tokens, shortlist, size)
            return shortlist_summary(torch.bmm(rows, features.unsqueeze(2)).squeeze(2).float(), candidates, mass)

        return TokenSignals(tokens, hidden.device, logits, summary, extra)


def check_caption_policy(policy: ExitPolicy) -> None:
    """Raises a `ConfigurationError` if `policy` cannot decide about captions, or be fitted on them."""
    if policy.adapts:
        raise ConfigurationError(
            f"model.exit_policy: found {policy.registered_name}, which adapts from batch to batch; allowed for "
            "captions: a policy with fixed thresholds"
        )
    if policy.needs_all_labels and not policy.is_calibrated:
        raise ConfigurationError(
            f"model.exit_policy: found {policy.registered_name} with parameters that are not set; it reads the "
            "probabilities of the whole vocabulary, which a trace of captions does not store; allowed: all parameters "
            "set in the config, or a policy that reads only the most probable token, such as beem or max_probability"
        )
