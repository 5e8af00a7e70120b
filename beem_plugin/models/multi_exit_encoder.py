"""A backbone with a classifier at every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.exits.gradients import scale_gradient
from beem_plugin.exits.heads import ExitHead, HeadFamily, HeadSizes, PooledHeads
from beem_plugin.exits.outputs import ExitOutputs, HeadOutput, collect
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signal_modules import ExitView, SignalModule
from beem_plugin.exits.signals import ExitSignals

MEMORY = "exit_memory."
"""Names in `BackboneState.batched` that begin so are an exit's notes for later exits, not the backbone's."""


class MultiExitEncoder(torch.nn.Module, Registrable):
    """
    Steps a backbone layer by layer and classifies at its exits. Exits are numbered from 1; exit e reads the output of
    layer `exit_layers[e - 1]`, and the last exit is the network's ordinary classifier on its last layer.

    Heads and signal modules may look back at earlier exits. What they need of them travels with each sample in the
    state's `batched` tensors, under names that begin with `MEMORY`, so that every engine can regroup samples as it
    likes.

    Registered as a `MultiExitEncoder` with name "multi_exit".

    # Parameters

    num_labels : `int`
        Filled in by the model.
    backbone : `Backbone`
    exit_layers : `list[int]`, optional (default = every layer)
        The layers that carry an exit, rising; the last layer must be among them.
    pooler : `Seq2VecEncoder`, optional (default = `"bert_pooler"`)
        From allennlp-light: `"cls_pooler"`, `"bert_pooler"`, `{"type": "boe", "averaged": true}` (the mean), ...
        `embedding_dim` is filled in.
    share_pooler : `bool`, optional (default = `True`)
        One pooler for all exits, as PABEE's and BEEM's code; or one an exit, as DeeBERT and ElasticBERT.
    dropout : `float`, optional (default = `0.1`)
        Before every classifier.
    head : `HeadFamily`, optional (default = `"pooled"`)
        What an exit is made of.
    share_classifier : `bool`, optional (default = `False`)
        One classifier for all exits, as PALBERT and MuE.
    signals : `list[SignalModule]`, optional (default = `None`)
        What the exits say beside their logits, for policies that read it: `"similarity"`, `"predicted_error"`,
        `"halt"`, `"gate"`.
    gradient_equilibrium : `bool`, optional (default = `False`)
        ElasticBERT: in training, the gradient that reaches the output of exit i's layer is divided by L - i + 1 and the
        part of it that comes from deeper exits is multiplied by L - i first, so that each block gets the mean of the
        gradients of the exits above it rather than their growing sum.
    """

    default_implementation = "multi_exit"

    def __init__(
        self,
        num_labels: int,
        backbone: Backbone,
        exit_layers: list[int] | None = None,
        pooler: Lazy[Seq2VecEncoder] = Lazy(BertPooler),  # noqa: B008 (how AllenNLP writes a default)
        share_pooler: bool = True,
        dropout: float = 0.1,
        head: HeadFamily | None = None,
        share_classifier: bool = False,
        signals: list[Lazy[SignalModule]] | None = None,
        gradient_equilibrium: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"dropout: found {dropout}, allowed: 0 up to, not including, 1")
        self.backbone = backbone
        self.num_labels = num_labels
        self.exit_layers = check_exit_layers(exit_layers, backbone.num_layers)
        self.gradient_equilibrium = gradient_equilibrium
        count = len(self.exit_layers)
        sizes = HeadSizes(
            count,
            backbone.hidden_size,
            num_labels,
            dropout,
            lambda: self._build_pooler(pooler),
            share_pooler,
            share_classifier,
        )
        self.exits = torch.nn.ModuleList((head if head is not None else PooledHeads()).build(sizes))
        self.signal_modules = torch.nn.ModuleDict()
        for lazy in signals or []:
            module = lazy.construct(num_exits=count, pooled_size=self._pooled_size(), num_labels=num_labels)
            if module.name in self.signal_modules:
                raise ConfigurationError(f"signals: found {module.name!r} twice, allowed: each once")
            self.signal_modules[module.name] = module
        modules = [cast(SignalModule, module) for module in self.signal_modules.values()]
        self._keeps_pooled = any(module.needs_previous_pooled for module in modules)
        self._keeps_hidden_states = any(module.needs_previous_hidden_states for module in modules)

    def _build_pooler(self, pooler: Lazy[Seq2VecEncoder]) -> Seq2VecEncoder:
        size = self.backbone.hidden_size
        built = pooler.construct(embedding_dim=size)
        if built.get_input_dim() != size:
            raise ConfigurationError(
                f"pooler: takes vectors of {built.get_input_dim()}, found a backbone with hidden size {size}"
            )
        parameters = self.backbone.pretrained_pooler()
        if isinstance(built, BertPooler) and built.pretrained and parameters is not None:
            built.initialize(*parameters)
        return built

    def _pooled_size(self) -> int:
        return cast(ExitHead, self.exits[0]).pooled_size

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def available_signals(self) -> set[str]:
        """The signals beside the logits that `exit_signals` produces."""
        return set(self.signal_modules)

    @property
    def looks_back(self) -> bool:
        """Whether an exit needs something of the exits before it, so that samples carry a memory."""
        remembers = any(cast(ExitHead, head).remembers for head in self.exits)
        return remembers or self._keeps_pooled or self._keeps_hidden_states

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        """The state before layer 1."""
        return self.backbone.embed(batch)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        """From the state at exit `exit_number - 1` (0: the embeddings) to the state at exit `exit_number`."""
        last_output = None
        if exit_number > 1 and (self._keeps_pooled or cast(ExitHead, self.exits[exit_number - 2]).remembers):
            last_output = self.exit_output(exit_number - 1, state)
        return self._advance(exit_number, state, last_output)

    def _advance(self, exit_number: int, state: BackboneState, last_output: HeadOutput | None) -> BackboneState:
        """`advance`, with what the exit before said where that is known already."""
        if last_output is not None:
            state = self._remember(exit_number - 1, state, last_output)
        first = 1 if exit_number == 1 else self.exit_layers[exit_number - 2] + 1
        last = self.exit_layers[exit_number - 1]
        for layer in range(first, last + 1):
            if layer == last and self._keeps_hidden_states:
                name = MEMORY + "previous_hidden_states"
                state = with_memory(state, {name: state.hidden_states}, {name: (1,)})
            state = self.backbone.layer(layer, state)
        return state

    def _remember(self, exit_number: int, state: BackboneState, output: HeadOutput) -> BackboneState:
        head = cast(ExitHead, self.exits[exit_number - 1])
        kept = {MEMORY + name: value for name, value in head.memory_after(output, memory_of(state)).items()}
        if self._keeps_pooled:
            kept[MEMORY + "previous_pooled"] = output.pooled
        return with_memory(state, kept) if kept else state

    def exit_output(self, exit_number: int, state: BackboneState) -> HeadOutput:
        """What exit `exit_number` says about the samples of `state`, logits and signals in float32."""
        memory = memory_of(state)
        output = cast(ExitHead, self.exits[exit_number - 1])(state.hidden_states, state.attention_mask, memory)
        output.logits = output.logits.float()
        if self.signal_modules:
            view = ExitView(
                exit_number, output.logits, output.pooled, state.hidden_states, state.attention_mask, memory
            )
            output.signals = {name: module(view) for name, module in self.signal_modules.items()}
        return output

    def exit_logits(self, exit_number: int, state: BackboneState) -> Tensor:
        """`(batch, labels)` float32, whatever the precision of the backbone."""
        head = cast(ExitHead, self.exits[exit_number - 1])
        return head(state.hidden_states, state.attention_mask, memory_of(state)).logits.float()

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        """What exit `exit_number` says about the samples of `state`."""
        if not self.signal_modules:
            return ExitSignals(self.exit_logits(exit_number, state))
        output = self.exit_output(exit_number, state)
        return ExitSignals(output.logits, output.signals)

    def outputs(self, batch: dict[str, Tensor]) -> ExitOutputs:
        """What all exits say, for an objective."""
        state = self.embed(batch)
        outputs: list[HeadOutput] = []
        for exit_number in range(1, self.num_exits + 1):
            state = self._advance(exit_number, state, outputs[-1] if outputs else None)
            later = self.num_exits - exit_number
            if self.gradient_equilibrium and self.training:
                state = state.advance(scale_gradient(state.hidden_states, 1 / (later + 1)))
            outputs.append(self.exit_output(exit_number, state))
            if self.gradient_equilibrium and self.training and later:
                state = state.advance(scale_gradient(state.hidden_states, later))
        return collect(outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """`(batch, exits, labels)` float32: the logits of all exits."""
        return self.outputs(batch).logits


MultiExitEncoder.register("multi_exit")(MultiExitEncoder)


def check_exit_layers(exit_layers: Sequence[int] | None, num_layers: int) -> list[int]:
    """All layers by default; else the given ones, which must rise and end with the last layer."""
    if exit_layers is None:
        return list(range(1, num_layers + 1))
    layers = list(exit_layers)
    if not layers or layers != sorted(set(layers)) or layers[0] < 1 or layers[-1] != num_layers:
        raise ConfigurationError(
            f"exit_layers: found {layers}, allowed: rising layer numbers from 1, the last of them {num_layers}"
        )
    return layers


def memory_of(state: BackboneState) -> Mapping[str, Tensor]:
    """What earlier exits left with the samples of `state`."""
    return {name.removeprefix(MEMORY): value for name, value in state.batched.items() if name.startswith(MEMORY)}


def with_memory(
    state: BackboneState, tensors: dict[str, Tensor], token_dims: dict[str, tuple[int, ...]] | None = None
) -> BackboneState:
    """`state` with these tensors, each with the samples first, in the place of those of the same names."""
    return BackboneState(
        state.hidden_states,
        state.attention_mask,
        {**state.batched, **tensors},
        state.shared,
        {**state.token_dims, **(token_dims or {})},
    )
