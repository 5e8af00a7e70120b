"""A caption decoder with a vocabulary head at its exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones.layer_dropout import LayerDropout
from beem_plugin.backbones.vision_encoder_decoder import CaptionBackbone
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable, registered_name
from beem_plugin.decoding.image_size import named_image_size
from beem_plugin.exits.branches import Branch, BranchedVocabularyHead
from beem_plugin.exits.forks import Fork, SumFork
from beem_plugin.exits.signal_modules.predicted_error import PredictedError
from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule
from beem_plugin.exits.token_signals import TokenSignals, TokenSummary
from beem_plugin.exits.vocabulary_heads import TiedHead, VocabularyHead
from beem_plugin.models.multi_exit_encoder import check_exit_layers


class MultiExitDecoder(torch.nn.Module, Registrable):
    """
    An image encoder, and a decoder with a distribution over the vocabulary at each exit. Exits are numbered from 1;
    exit e reads the output of block `exit_layers[e - 1]`, and the last exit is the decoder's own output: its final
    normalisation and its vocabulary matrix.

    Registered as a `MultiExitDecoder` with name "multi_exit".

    # Parameters

    vocab_size : `int`
        Vocabulary size of the tokenizer; filled in by the model.
    backbone : `CaptionBackbone`
    exit_layers : `list[int]`, optional (default = every block)
        The blocks with an exit, in ascending order, including the last block. A head costs as much as five blocks of
        GPT-2, so a few exits are faster than twelve.
    head : `VocabularyHead`, optional (default = `"tied"`)
        Head of every exit but the last.
    branch : `Branch`, optional (default = `None`)
        Additional layers before the head of every exit but the last: `"adapter"` or `"mlp"`, which process each token
        separately.
    fork : `Fork`, optional (default = `"sum"`)
        How gradients are combined, in training, where an exit and the next block read the same hidden states.
    layer_dropout : `LayerDropout`, optional (default = `None`)
        Blocks that are skipped at random in training, such as `{"max_rate": 0.1}`.
    signals : `list[SignalModule]`, optional (default = `[]`)
        The signal module that needs no logits: `"predicted_error"`. `similarity` (the cosine of a block's output and
        its input) and `position` are always available.
    shortlist : `int`, optional (default = `None`)
        Exits between the first and the last evaluate only this number of the first exit's most probable tokens to
        decide whether a token exits. Their probabilities are scaled to the sum at the first exit: an estimate of the
        confidence. The token is chosen from the whole vocabulary. None evaluates the whole vocabulary.
    """

    default_implementation = "multi_exit"

    def __init__(
        self,
        vocab_size: int,
        backbone: Lazy[CaptionBackbone],
        exit_layers: list[int] | None = None,
        head: Lazy[VocabularyHead] = Lazy(TiedHead),  # noqa: B008 (how AllenNLP writes a default)
        signals: list[Lazy[SignalModule]] | None = None,
        shortlist: int | None = None,
        branch: Lazy[Branch] | None = None,
        fork: Fork | None = None,
        layer_dropout: LayerDropout | None = None,
    ) -> None:
        super().__init__()
        self.fork = fork if fork is not None else SumFork()
        self.layer_dropout = layer_dropout
        self.backbone = backbone.construct(vocab_size=vocab_size)
        decoder = self.backbone.decoder
        self.exit_layers = check_exit_layers(exit_layers, decoder.num_layers)
        self.fork.bind(self.num_exits)
        if layer_dropout is not None:
            layer_dropout.bind(decoder.num_layers)
        if shortlist is not None and not 2 <= shortlist <= decoder.vocab_size:
            raise ConfigurationError(f"decoder.shortlist: found {shortlist}, allowed: 2 to {decoder.vocab_size}")
        self.shortlist = shortlist
        norm, weight = decoder.final_norm, decoder.output_weight
        heads: list[VocabularyHead] = [
            head.construct(norm=norm, output_weight=weight, exit_number=number, num_exits=self.num_exits)
            for number in range(1, self.num_exits)
        ]
        if branch is not None:
            heads = [BranchedVocabularyHead(_token_branch(branch, decoder.hidden_size), inner) for inner in heads]
        for each in heads:
            each.join(heads)
        self.remembers = any(each.remembers for each in heads)
        self.exits = torch.nn.ModuleList([*heads, TiedHead(norm, weight, share_norm=True)])
        self.signal_modules = torch.nn.ModuleDict()
        for signal in signals or []:
            module = signal.construct(
                num_exits=self.num_exits, pooled_size=decoder.hidden_size, num_labels=decoder.vocab_size
            )
            if not isinstance(module, PredictedError):
                raise ConfigurationError(
                    f"decoder.signals: found {module.name!r}, allowed: 'predicted_error' ('similarity' and 'position' "
                    "are always available)"
                )
            self.signal_modules[module.name] = module

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

    def start_step(self, step: int, total_steps: int) -> None:
        """See `Model.start_step`."""
        for part in (self.fork, self.layer_dropout):
            if part is not None:
                part.start_step(step, total_steps)

    def image_states(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """`(batch, patches, hidden)`, each image encoded once; `None` without images."""
        pixels = batch.get("pixel_values")
        if pixels is None:
            return None
        with named_image_size(self.backbone, pixels):
            states = self.backbone.encode_images(pixels)
        rows = batch.get("image_of_row")
        return states if rows is None else states.index_select(0, rows)

    def exit_states(self, tokens: Tensor, image_states: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """
        Runs all blocks over whole captions, and yields at each exit.

        # Parameters

        tokens : `Tensor`
            `(batch, tokens)` int64, padded on the right; no mask is needed because attention is causal.
        image_states : `Tensor`, optional

        # Returns

        `Iterator[tuple[int, Tensor, Tensor]]`
            The exit's number, the output of its block, and that block's input, both `(batch, tokens, hidden)`.
        """
        decoder = self.backbone.decoder
        hidden = decoder.embed(tokens)
        exits = {layer: number for number, layer in enumerate(self.exit_layers, 1)}
        for layer in range(1, decoder.num_layers + 1):
            previous = hidden
            query, key, value = decoder.project(layer, hidden)
            cross = None if image_states is None else decoder.cross_keys_values(layer, image_states)
            hidden = decoder.block(layer, hidden, query, (key, value), is_causal=True, cross=cross)
            if self.training and self.layer_dropout is not None:
                hidden = self.layer_dropout(layer, previous, hidden)
            if layer in exits:
                for_exit = hidden
                if self.training and exits[layer] < self.num_exits:
                    for_exit, hidden = self.fork.split(hidden, exits[layer], self.num_exits)
                yield exits[layer], for_exit, previous

    def exit_features(self, exit_number: int, hidden: Tensor, memory: Mapping[str, Tensor] | None = None) -> Tensor:
        """`(tokens, size)`; the logits of the exit are their product with `exit_weight`."""
        head: Any = self.exits[exit_number - 1]
        return head.features(hidden, memory)

    def remember(self, exit_number: int, hidden: Tensor, memory: dict[str, Tensor]) -> None:
        """
        Adds to `memory` what the next exit's head reads; called at every exit but the last, after the exit was
        evaluated, if the heads remember.
        """
        head: Any = self.exits[exit_number - 1]
        memory.update(head.memory_after(hidden, memory))

    def imitated(self, exit_number: int, hidden: Tensor) -> Tensor | None:
        """`(tokens, later exits, size)`, the exit's estimates of later features; `None` if the head has none."""
        head: Any = self.exits[exit_number - 1]
        return head.imitated(hidden)

    def exit_state(self, exit_number: int, hidden: Tensor) -> Tensor:
        """`(tokens, size)` the state that earlier exits imitate; the features of the last exit."""
        head: Any = self.exits[exit_number - 1]
        state = head.state(hidden)
        return self.exit_features(exit_number, hidden) if state is None else state

    def exit_weight(self, exit_number: int) -> Tensor:
        """`(vocabulary, size)`"""
        head: Any = self.exits[exit_number - 1]
        return head.weight(self.backbone.decoder.output_weight)

    def exit_logits(self, exit_number: int, hidden: Tensor, memory: Mapping[str, Tensor] | None = None) -> Tensor:
        """`(tokens, vocabulary)` float32"""
        return functional.linear(self.exit_features(exit_number, hidden, memory), self.exit_weight(exit_number)).float()

    def head_macs(self, exit_number: int, num_tokens: int | None = None) -> int:
        """Multiply-accumulates of an exit's logits for a token, over the vocabulary or `num_tokens` entries of it."""
        head: Any = self.exits[exit_number - 1]
        total, size = self.exit_weight(exit_number).shape
        return head.features_macs() + (total if num_tokens is None else num_tokens) * size

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
    ) -> TokenSignals:
        """
        The signals of exit `exit_number`, in training, tracing and decoding.

        # Parameters

        hidden, previous : `Tensor`
            `(tokens, hidden)`, output and input of the exit's block.
        position : `Tensor`
            `(tokens,)` the position of each token in its caption, from 0.
        memory : `dict[str, Tensor]`
            Tensors `(tokens, ...)` that earlier exits stored; this exit adds its own.
        count : `Callable[[int], None]`, optional
            Called with the multiply-accumulates of each head that is computed.
        """
        tokens = len(hidden)
        # Signals are computed when they are read, which may be after this exit has added to the memory.
        before = dict(memory)

        def logits() -> Tensor:
            count(tokens * self.head_macs(exit_number))
            return self.exit_logits(exit_number, hidden, before)

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
            features = self.exit_features(exit_number, hidden, before)
            rows = functional.embedding(candidates, self.exit_weight(exit_number))  # (tokens, shortlist, size)
            return shortlist_summary(torch.bmm(rows, features.unsqueeze(2)).squeeze(2).float(), candidates, mass)

        return TokenSignals(tokens, hidden.device, logits, summary, extra)


MultiExitDecoder.register("multi_exit")(MultiExitDecoder)


def _token_branch(lazy: Lazy[Branch], hidden_size: int) -> Branch:
    branch = lazy.construct(hidden_size=hidden_size)
    if branch.mixes_tokens:
        raise ConfigurationError(
            f"decoder.branch: found {registered_name(Branch, branch)!r}, which reads other tokens, and decoding stores "
            "no keys and values for it; allowed: 'adapter', 'mlp'"
        )
    return branch


def shortlist_summary(logits: Tensor, candidates: Tensor, mass: Tensor) -> TokenSummary:
    """
    The summary of a distribution of which only candidates are known: their probabilities sum to `mass`, and the
    remainder counts as one further entry in the entropy.

    # Parameters

    logits, candidates : `Tensor`
        `(tokens, shortlist)`
    mass : `Tensor`
        `(tokens,)` a probability.
    """
    log_p = logits.log_softmax(-1) + mass.clamp_min(1e-30).log().unsqueeze(1)
    top = log_p.topk(2, dim=-1).values.exp()
    rest = (1 - mass).clamp(1e-30, 1)
    entropy = -(log_p.exp() * log_p).sum(-1) - rest * rest.log()
    token = candidates.gather(1, log_p.argmax(-1, keepdim=True)).squeeze(1)
    return TokenSummary(token, top[:, 0], entropy, top[:, 0] - top[:, 1])
