"""A backbone with a classifier at every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.exits.heads import ExitHead
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signals import ExitSignals


class MultiExitEncoder(torch.nn.Module, Registrable):
    """
    Steps a backbone layer by layer and classifies at its exits. Exits are numbered from 1; exit e reads the output of
    layer `exit_layers[e - 1]`, and the last exit is the network's ordinary classifier on its last layer.

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
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"dropout: found {dropout}, allowed: 0 up to, not including, 1")
        self.backbone = backbone
        self.num_labels = num_labels
        self.exit_layers = check_exit_layers(exit_layers, backbone.num_layers)
        count = len(self.exit_layers)
        poolers = [self._build_pooler(pooler) for _ in range(1 if share_pooler else count)]
        self.exits = torch.nn.ModuleList(
            ExitHead(poolers[0 if share_pooler else index], num_labels, dropout) for index in range(count)
        )

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

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def available_signals(self) -> set[str]:
        """The signals beside the logits that `exit_signals` produces."""
        return set()

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        """The state before layer 1."""
        return self.backbone.embed(batch)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        """From the state at exit `exit_number - 1` (0: the embeddings) to the state at exit `exit_number`."""
        first = 1 if exit_number == 1 else self.exit_layers[exit_number - 2] + 1
        for layer in range(first, self.exit_layers[exit_number - 1] + 1):
            state = self.backbone.layer(layer, state)
        return state

    def exit_logits(self, exit_number: int, state: BackboneState) -> Tensor:
        """`(batch, labels)` float32, whatever the precision of the backbone."""
        return self.exits[exit_number - 1](state.hidden_states, state.attention_mask).float()

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        """What exit `exit_number` says about the samples of `state`."""
        return ExitSignals(self.exit_logits(exit_number, state))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """`(batch, exits, labels)` float32: the logits of all exits."""
        state = self.embed(batch)
        logits = []
        for exit_number in range(1, self.num_exits + 1):
            state = self.advance(exit_number, state)
            logits.append(self.exit_logits(exit_number, state))
        return torch.stack(logits, 1)


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
