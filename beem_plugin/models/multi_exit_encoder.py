"""A backbone with exits after some or all layers."""

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.backbones.layer_dropout import LayerDropout
from beem_plugin.calibration.speed import TokenDepth
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.data.instance import Instance
from beem_plugin.exits.branches import Branch, with_branches
from beem_plugin.exits.forks import EquilibriumFork, Fork, SumFork
from beem_plugin.exits.heads import HeadFamily, HeadSizes, PooledHeads
from beem_plugin.exits.outputs import ExitOutputs, HeadOutput, collect
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signal_modules import SignalModule
from beem_plugin.models.encoder_exits import MEMORY, NEW_MEMORY, EncoderExits, commit_memory, with_memory
from beem_plugin.models.exit_construction import build_pooler, build_signals, check_exit_layers

logger = logging.getLogger(__name__)

READ = {"first": "the first token", "mean": "the mean of the tokens"}


class MultiExitEncoder(EncoderExits, Registrable):
    """
    Runs a backbone layer by layer with a classifier at each exit. Exits are numbered from 1; exit e reads the output of
    layer `exit_layers[e - 1]`, and the last exit is the usual classifier on the last layer. What heads and signal
    modules read of earlier exits is stored in the state (`exit_memory`), so that engines regroup it with the samples.

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
    obstacle: ClassVar[str | None] = None
    """Why the layers cannot be captured in one graph per sequence length."""

    output_per_token: ClassVar[bool] = False
    """Whether the output of a sample is a label for each of its tokens."""

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
        check_number("dropout", dropout, high=1, open_high=True)
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
        if gradual_unfreezing is not None:
            check_number("gradual_unfreezing", gradual_unfreezing, 1, backbone.num_layers - 1)
        self.gradual_unfreezing = gradual_unfreezing
        self._is_frozen = False
        count, size = len(self.exit_layers), backbone.hidden_size
        build = partial(build_pooler, pooler, backbone)
        sizes = HeadSizes(count, size, num_labels, dropout, build, share_pooler, share_classifier)
        heads = with_branches((head if head is not None else PooledHeads()).build(sizes), branch, size)
        self.exits = torch.nn.ModuleList(heads)
        shared = "shared by all exits" if share_pooler else "one for each exit"
        logger.info("exits read %s; pooler: %s", READ.get(self.head(1).reads or "", "all tokens"), shared)
        self.signal_modules = build_signals(signals, count, self.head(1).pooled_size, num_labels)
        self._find_memory()

    def prepare(self, instances: Iterable[Instance]) -> None:
        """Called with the training data before training, to compute statistics of it."""

    def start_step(self, step: int, total_steps: int) -> None:
        """See `Model.start_step`."""
        for part in (self.fork, self.layer_dropout):
            if part is not None:
                part.start_step(step, total_steps)
        if self.gradual_unfreezing is not None:
            # A function of the step only: equal in all processes and in a resumed run.
            drawn = random.Random(f"gradual unfreezing {step}").random()
            self._is_frozen = drawn < 1 - step / max(total_steps, 1)

    def depth_of_tokens(self, samples: Iterable[Sequence[int]]) -> dict[str, Any]:
        """Speed-ups counted over tokens if `tokens_leave`, otherwise empty; `samples` are token ids without padding."""
        depth = self.token_depth(samples)
        return {} if depth is None else depth.summary()

    def token_depth(self, samples: Iterable[Sequence[int]]) -> TokenDepth | None:
        """The depth of each token if `tokens_leave`, otherwise `None`."""
        return None

    @property
    def is_packable(self) -> bool:
        """Whether states are hidden states only, which can be packed; not if a subclass overrides how they are made."""
        inherited = (type(self).embed, type(self)._advance) == (MultiExitEncoder.embed, MultiExitEncoder._advance)
        return inherited and not self.carries_memory

    def embed(self, batch: dict[str, Tensor], backbone: Any = None) -> BackboneState:
        """The state before layer 1; `backbone` computes the layers, such as the backbone's inference form."""
        return (self.backbone if backbone is None else backbone).embed(batch)

    def advance(self, exit_number: int, state: BackboneState, backbone: Any = None) -> BackboneState:
        """From the state at exit `exit_number - 1` (0: the embeddings) to that at exit `exit_number`."""
        previous = exit_number - 1
        if self._writes_memory(previous) and not any(name.startswith(NEW_MEMORY) for name in state.batched):
            output = self.exit_output(previous, state)
            state = with_memory(state, self._memory_tensors(previous, state, output))
        return self._advance(exit_number, state, self.backbone if backbone is None else backbone)

    def _advance(self, exit_number: int, state: BackboneState, backbone: Any) -> BackboneState:
        """`advance` from a state with the memory of the previous exit."""
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

    def outputs(self, batch: dict[str, Tensor]) -> ExitOutputs:
        """The outputs of all exits, for an objective."""
        state = self.embed(batch)
        outputs: list[HeadOutput] = []
        hidden_states: list[Tensor] = []
        for exit_number in range(1, self.num_exits + 1):
            state = self._advance(exit_number, state, self.backbone)
            for_exit = for_next = state.hidden_states
            if self.training and exit_number < self.num_exits:
                for_exit, for_next = self.fork.split(state.hidden_states, exit_number, self.num_exits)
            outputs.append(self.exit_output(exit_number, state.advance(for_exit)))
            state = state.advance(for_next)
            if self._writes_memory(exit_number):
                state = with_memory(state, self._memory_tensors(exit_number, state, outputs[-1]))
            if self.training:
                hidden_states.append(for_exit)
        return replace(collect(outputs), inputs=batch, hidden_states=hidden_states)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """`(batch, exits, labels)` float32: the logits of all exits."""
        return self.outputs(batch).logits


MultiExitEncoder.register("multi_exit")(MultiExitEncoder)
