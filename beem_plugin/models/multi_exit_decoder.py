"""A caption decoder with a vocabulary head at its exits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from beem_plugin.backbones.layer_dropout import LayerDropout
from beem_plugin.backbones.vision_encoder_decoder import CaptionBackbone
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.exits.branches import Branch
from beem_plugin.exits.forks import Fork, SumFork
from beem_plugin.exits.signal_modules import PredictedError, SignalModule
from beem_plugin.exits.vocabulary_heads import TiedHead, VocabularyHead
from beem_plugin.models.caption_exits import CaptionExits
from beem_plugin.models.exit_construction import build_signals, causal_branch, check_exit_layers


@dataclass
class TargetOutputs:
    """What training needs of the target tokens: lists over the exits."""

    features: list[Tensor] = field(default_factory=list)  # (tokens, size); by `exit_weight` they are the logits
    predicted_errors: list[Tensor] = field(default_factory=list)  # (tokens,), of early exits; empty without the signal
    states: list[Tensor] = field(default_factory=list)  # (tokens, size), which earlier exits imitate, if heads remember
    imitated: list[Tensor] = field(default_factory=list)  # (tokens, later exits, size), estimates of later states


class MultiExitDecoder(CaptionExits, Registrable):
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
        separately, or `"transformer"`, in which a token attends to those up to itself. In decoding, keys and values of
        tokens that left before the exit are projected from their last hidden state; with `"recompute"` from the state
        that they have at the exit's block.
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
        if shortlist is not None:
            check_number("decoder.shortlist", shortlist, 2, decoder.vocab_size)
        self.shortlist = shortlist
        norm, weight = decoder.final_norm, decoder.output_weight
        heads: list[VocabularyHead] = [
            head.construct(norm=norm, output_weight=weight, exit_number=number, num_exits=self.num_exits)
            for number in range(1, self.num_exits)
        ]
        for each in heads:
            each.join(heads)
            if branch is not None:
                each.branch = causal_branch(branch, decoder.hidden_size)
        self.remembers = any(each.remembers for each in heads)
        self.exits = torch.nn.ModuleList([*heads, TiedHead(norm, weight, share_norm=True)])
        self.signal_modules = build_signals(signals, self.num_exits, decoder.hidden_size, decoder.vocab_size)
        for name, module in self.signal_modules.items():
            if not isinstance(module, PredictedError):
                raise ConfigurationError(
                    f"decoder.signals: found {name!r}, allowed: 'predicted_error' ('similarity' and 'position' are "
                    "always available)"
                )

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
        states = self.backbone.encode_images(pixels)
        rows = batch.get("image_of_row")
        return states if rows is None else states.index_select(0, rows)

    def exit_states(self, tokens: Tensor, image_states: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """
        Runs all blocks over whole captions, `(batch, tokens)` int64, padded on the right, without a mask because
        attention is causal. Yields each exit's number, and its block's output and input, `(batch, tokens, hidden)`.
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

    def target_outputs(self, tokens: Tensor, is_target: Tensor, image_states: Tensor | None) -> TargetOutputs:
        """
        Of all exits for the target tokens of reference captions. `tokens` are `(batch, tokens)` int64, each caption
        without its last token; `is_target` is true where the next token is predicted.
        """
        outputs, memory = TargetOutputs(), dict[str, Tensor]()
        for number, hidden, _ in self.exit_states(tokens, image_states):
            head, last = self.head(number), number == self.num_exits
            read = self.exit_input(number, hidden)[is_target]
            outputs.features.append(head.features(read, memory))
            if "predicted_error" in self.signal_modules and not last:
                outputs.predicted_errors.append(self.predicted_error(number, hidden[is_target]))
            if not self.remembers:
                continue
            state = head.state(read)
            outputs.states.append(outputs.features[-1] if last or state is None else state)
            imitated = None if last else head.imitated(read)
            if imitated is not None:
                outputs.imitated.append(imitated)
            memory.update(head.memory_after(read, memory))
        return outputs


MultiExitDecoder.register("multi_exit")(MultiExitDecoder)
