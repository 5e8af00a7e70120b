"""A backbone with exits after some or all layers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.backbones.layer_dropout import LayerDropout
from beem_plugin.calibration.token_depth import TokenDepth
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.data.instance import Instance
from beem_plugin.exits.branches import Branch, BranchedHead, with_branches
from beem_plugin.exits.forks import EquilibriumFork, Fork, SumFork
from beem_plugin.exits.heads import ExitHead, HeadFamily, HeadSizes, PooledHeads
from beem_plugin.exits.outputs import ExitOutputs, HeadOutput, collect
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signal_modules import ExitView, SignalModule
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.exit_memory import MEMORY, NEW_MEMORY, commit_memory, memory_of, with_memory


class MultiExitEncoder(torch.nn.Module, Registrable):
    """
    Runs a backbone layer by layer with a classifier at each exit. Exits are numbered from 1; exit e reads the output of
    layer `exit_layers[e - 1]`, and the last exit is the usual classifier on the last layer.

    Heads and signal modules may read the outputs of earlier exits. These are stored per sample in the state's `batched`
    tensors, under names that begin with `MEMORY`, so that engines regroup them with the samples. `exit_signals` stores
    them with prefix `NEW_MEMORY`, so that `advance` need not compute them again.

    Registered as a `MultiExitEncoder` with name "multi_exit".

    # Parameters

    num_labels : `int`
        Filled in by the model.
    backbone : `Backbone`
    exit_layers : `list[int]`, optional (default = every layer)
        The layers with an exit, in ascending order, including the last layer.
    pooler : `Seq2VecEncoder`, optional (default = `"bert_pooler"`)
        From allennlp-light: `"cls_pooler"`, `"bert_pooler"`, `{"type": "boe", "averaged": true}` (the mean), ...
        `embedding_dim` is filled in.
    share_pooler : `bool`, optional (default = `True`)
        One pooler for all exits, as in the code of PABEE and BEEM; or one per exit, as in DeeBERT and ElasticBERT.
    dropout : `float`, optional (default = `0.1`)
        Before every classifier.
    head : `HeadFamily`, optional (default = `"pooled"`)
        Pooler and classifier of the exits.
    share_classifier : `bool`, optional (default = `False`)
        One classifier for all exits, as in PALBERT and MuE.
    signals : `list[SignalModule]`, optional (default = `None`)
        Outputs of the exits in addition to logits, for policies that read them: `"similarity"`, `"predicted_error"`,
        `"halt"`, `"gate"`.
    branch : `Branch` or `list[Branch]`, optional (default = `None`)
        Additional layers of an exit before its pooler, such as `{"type": "transformer", "width": 384}`: for every exit
        but the last, or a list with one entry per exit (`null`: none).
    fork : `Fork`, optional (default = `"sum"`)
        How gradients are combined, in training, where an exit and the next layer read the same hidden states.
    gradient_equilibrium : `bool`, optional (default = `False`)
        The same as `fork: "equilibrium"`.
    gradual_unfreezing : `int`, optional (default = `None`)
        Global Past-Future: in each training step, with probability 1 - step / steps, the layers above this one pass no
        gradient to it and the layers below it.
    layer_dropout : `LayerDropout`, optional (default = `None`)
        Layers that are skipped at random in training, such as `{"max_rate": 0.1}`.
    """

    default_implementation = "multi_exit"

    tokens_leave: ClassVar[bool] = False
    """Whether tokens exit one by one, so that speed-ups are counted over tokens."""

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
        gradual_unfreezing: int | None = None,
        branch: Lazy[Branch] | list[Lazy[Branch] | None] | None = None,
        fork: Fork | None = None,
        layer_dropout: LayerDropout | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"dropout: found {dropout}, allowed: 0 up to, not including, 1")
        self.backbone = backbone
        self.num_labels = num_labels
        self.exit_layers = check_exit_layers(exit_layers, backbone.num_layers)
        if gradient_equilibrium and fork is not None:
            raise ConfigurationError("gradient_equilibrium: found true together with a fork, allowed: one of the two")
        self.fork = EquilibriumFork() if gradient_equilibrium else fork if fork is not None else SumFork()
        self.fork.bind(len(self.exit_layers))
        self.layer_dropout = layer_dropout
        if layer_dropout is not None:
            layer_dropout.bind(backbone.num_layers)
        if gradual_unfreezing is not None and not 1 <= gradual_unfreezing < backbone.num_layers:
            raise ConfigurationError(
                f"gradual_unfreezing: found {gradual_unfreezing}, allowed: 1 to {backbone.num_layers - 1}, or null"
            )
        self.gradual_unfreezing = gradual_unfreezing
        self._is_frozen = False
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
        heads = (head if head is not None else PooledHeads()).build(sizes)
        self.exits = torch.nn.ModuleList(with_branches(heads, branch, backbone.hidden_size))
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
        """Names of the signals that `exit_signals` computes in addition to logits."""
        return set(self.signal_modules)

    @property
    def carries_memory(self) -> bool:
        """Whether an exit reads outputs of earlier exits, so that states carry memory tensors."""
        heads = any(cast(ExitHead, head).remembers for head in self.exits)
        return heads or self._keeps_pooled or self._keeps_hidden_states

    @property
    def obstacle(self) -> str | None:
        """Why the layers cannot be captured in one graph per sequence length; `None` if they can."""
        return None

    @property
    def memory_readers(self) -> list[str]:
        """Names of the heads and signals that read outputs of earlier exits."""
        bare = [head.head if isinstance(head, BranchedHead) else head for head in self.exits]
        heads = {type(head).__name__ for head in bare if cast(ExitHead, head).remembers}
        modules = ((name, cast(SignalModule, module)) for name, module in self.signal_modules.items())
        signals = [
            name for name, module in modules if module.needs_previous_pooled or module.needs_previous_hidden_states
        ]
        return sorted(heads) + signals

    def prepare(self, instances: Iterable[Instance]) -> None:
        """Called with the training data before training, to compute statistics of it."""

    def start_step(self, step: int, total_steps: int) -> None:
        """See `Model.start_step`."""
        self.fork.start_step(step, total_steps)
        if self.layer_dropout is not None:
            self.layer_dropout.start_step(step, total_steps)
        if self.gradual_unfreezing is not None:
            # A function of the step only: equal in all processes and in a resumed run.
            drawn = random.Random(f"gradual unfreezing {step}").random()
            self._is_frozen = drawn < 1 - step / max(total_steps, 1)

    def depth_of_tokens(self, samples: Iterable[Sequence[int]]) -> dict[str, Any]:
        """
        Speed-ups counted over tokens if `tokens_leave`; otherwise empty.

        # Parameters

        samples : `Iterable[Sequence[int]]`
            Token ids, without padding.
        """
        depth = self.token_depth(samples) if self.tokens_leave else None
        return {} if depth is None else depth.summary()

    def token_depth(self, samples: Iterable[Sequence[int]]) -> TokenDepth | None:
        """The depth of each token if `tokens_leave`, otherwise `None`. Parameters as of `depth_of_tokens`."""
        return None

    @property
    def is_packable(self) -> bool:
        """
        Whether states consist of hidden states only, so that samples can be stored without padding. `False` for a
        subclass that overrides `embed` or `_advance`.
        """
        inherited = (type(self).embed, type(self)._advance) == (MultiExitEncoder.embed, MultiExitEncoder._advance)
        return inherited and not self.carries_memory

    def embed(self, batch: dict[str, Tensor], backbone: Any = None) -> BackboneState:
        """
        The state before layer 1.

        # Parameters

        batch : `dict[str, Tensor]`
        backbone : `Any`, optional (default = the network's)
            Computes the layers, such as the backbone's inference form.
        """
        return (self.backbone if backbone is None else backbone).embed(batch)

    def advance(self, exit_number: int, state: BackboneState, backbone: Any = None) -> BackboneState:
        """
        From the state at exit `exit_number - 1` (0: the embeddings) to the state at exit `exit_number`; `backbone` as
        in `embed`.
        """
        last_output = None
        if self._writes_memory(exit_number - 1) and not any(name.startswith(NEW_MEMORY) for name in state.batched):
            last_output = self.exit_output(exit_number - 1, state)
        return self._advance(exit_number, state, last_output, self.backbone if backbone is None else backbone)

    def _writes_memory(self, exit_number: int) -> bool:
        """Whether later exits read outputs of this one."""
        if not 1 <= exit_number < self.num_exits:
            return False
        return self._keeps_pooled or bool(cast(ExitHead, self.exits[exit_number - 1]).remembers)

    def _advance(
        self, exit_number: int, state: BackboneState, last_output: HeadOutput | None, backbone: Any
    ) -> BackboneState:
        """`advance`, with the output of the previous exit if its memory is not stored in `state` yet."""
        if last_output is not None and self._writes_memory(exit_number - 1):
            state = with_memory(state, self._memory_tensors(exit_number - 1, state, last_output))
        if self.carries_memory:
            state = commit_memory(state)
        first = 1 if exit_number == 1 else self.exit_layers[exit_number - 2] + 1
        last = self.exit_layers[exit_number - 1]
        for layer in range(first, last + 1):
            if self.training and self._is_frozen and layer - 1 == self.gradual_unfreezing:
                state = state.advance(state.hidden_states.detach())
            if layer == last and self._keeps_hidden_states:
                name = MEMORY + "previous_hidden_states"
                state = with_memory(state, {name: state.hidden_states}, {name: (1,)})
            before, state = state.hidden_states, backbone.layer(layer, state)
            if self.training and self.layer_dropout is not None:
                state = state.advance(self.layer_dropout(layer, before, state.hidden_states))
        return state

    def _memory_tensors(self, exit_number: int, state: BackboneState, output: HeadOutput) -> dict[str, Tensor]:
        head = cast(ExitHead, self.exits[exit_number - 1])
        tensors = {NEW_MEMORY + name: value for name, value in head.memory_after(output, memory_of(state)).items()}
        if self._keeps_pooled:
            tensors[NEW_MEMORY + "previous_pooled"] = output.pooled
        return tensors

    def exit_output(self, exit_number: int, state: BackboneState) -> HeadOutput:
        """The output of exit `exit_number`, logits and signals in float32."""
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
        """`(batch, labels)` float32 for any precision of the backbone."""
        head = cast(ExitHead, self.exits[exit_number - 1])
        return head(state.hidden_states, state.attention_mask, memory_of(state)).logits.float()

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        """Logits and signals of exit `exit_number`; adds tensors for later exits to `state`."""
        writes_memory = self._writes_memory(exit_number)
        if not self.signal_modules and not writes_memory:
            return ExitSignals(self.exit_logits(exit_number, state))
        output = self.exit_output(exit_number, state)
        if writes_memory:
            # The dictionary was created by `advance` and is not shared with other states.
            state.batched.update(self._memory_tensors(exit_number, state, output))
        return ExitSignals(output.logits, output.signals)

    def outputs(self, batch: dict[str, Tensor]) -> ExitOutputs:
        """The outputs of all exits, for an objective."""
        state = self.embed(batch)
        outputs: list[HeadOutput] = []
        hidden_states: list[Tensor] = []
        for exit_number in range(1, self.num_exits + 1):
            state = self._advance(exit_number, state, outputs[-1] if outputs else None, self.backbone)
            for_exit = for_next = state.hidden_states
            if self.training and exit_number < self.num_exits:
                for_exit, for_next = self.fork.split(state.hidden_states, exit_number, self.num_exits)
            outputs.append(self.exit_output(exit_number, state.advance(for_exit)))
            state = state.advance(for_next)
            if self.training:
                hidden_states.append(for_exit)
        return replace(collect(outputs), inputs=batch, hidden_states=hidden_states)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """`(batch, exits, labels)` float32: the logits of all exits."""
        return self.outputs(batch).logits


MultiExitEncoder.register("multi_exit")(MultiExitEncoder)


def check_exit_layers(exit_layers: Sequence[int] | None, num_layers: int) -> list[int]:
    """`exit_layers`, by default all layers. Raises a `ConfigurationError` unless they rise and end with the last."""
    if exit_layers is None:
        return list(range(1, num_layers + 1))
    layers = list(exit_layers)
    if not layers or layers != sorted(set(layers)) or layers[0] < 1 or layers[-1] != num_layers:
        raise ConfigurationError(
            f"exit_layers: found {layers}, allowed: rising layer numbers from 1, the last of them {num_layers}"
        )
    return layers
