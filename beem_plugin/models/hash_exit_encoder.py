"""HashEE: an encoder in which tokens exit instead of samples, and its depths and multiply-accumulates."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.calibration.speed import TokenDepth
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy
from beem_plugin.data.instance import Instance
from beem_plugin.execution.metering.baselines import NetworkView
from beem_plugin.execution.metering.macs import count_macs, powers_of
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.encoder_exits import MEMORY, with_memory
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.token_hash import FrequencyHash, TokenHash

DEPTH = MEMORY + "token_depth"
BIAS = "position_bias"


class AllTokens(NetworkView):
    """A `hash_exit` encoder with an exit at every layer in which no token exits: to count its cost."""

    def __init__(self, encoder: MultiExitEncoder) -> None:
        super().__init__(encoder)
        self.num_exits = encoder.backbone.num_layers
        self.exit_layers = list(range(1, self.num_exits + 1))

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        return self.backbone.embed(batch)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        return self.backbone.layer(exit_number, state)

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        if exit_number < self.num_exits:
            return ExitSignals(state.hidden_states[:, 0, : self.num_labels])
        return self.network.exit_signals(1, state)


def depth_of_samples(encoder: MultiExitEncoder, depths: Sequence[Tensor], full_depth: int, saves: bool) -> TokenDepth:
    """
    Of a `hash_exit` encoder; `depths` are for each sample the last layer of each token, `(tokens,)` int64. Layers of
    `full_depth` above the backbone's cost as much as its last one. `saves`: whether tokens that have exited are not
    computed in later layers.
    """
    layers = encoder.backbone.num_layers
    if not depths:
        return TokenDepth(torch.zeros(0, layers, dtype=torch.int64), torch.zeros(0, 2).double(), full_depth)
    macs = count_macs(AllTokens(encoder))
    counts = torch.stack([torch.bincount(depth - 1, minlength=layers) for depth in depths])
    tokens = powers_of(counts.sum(1))
    running = torch.linalg.vander(counts.flip(1).cumsum(1).flip(1).double(), N=3)  # (samples, layers, 3)
    computed = ((running if saves else tokens[:, None]) * macs.layers).sum((1, 2))
    full = tokens @ (macs.layers.sum(0) + (full_depth - layers) * macs.layers[-1])
    return TokenDepth(counts, torch.stack([full, computed], 1) + (tokens @ macs.heads[-1])[:, None], full_depth)


@MultiExitEncoder.register("hash_exit")
class HashExitEncoder(MultiExitEncoder):
    """
    HashEE (Sun et al. 2022): a table defines the exit layer of each token id. A layer computes the active tokens, which
    attend to each other; the hidden states of tokens that have exited are copied to the output. One classifier reads
    the hidden states after the last layer. There are no decisions at run time: samples do not exit early, and the only
    exit is the last one.

    The first token always exits at the last layer, so that every layer has a token and a first-token pooler reads the
    last layer; in the paper this depends on the table.

    The table is computed from the training data before training and stored with the weights. Until then all tokens exit
    at the last layer.

    Registered as a `MultiExitEncoder` with name "hash_exit". `pooler` and `dropout` are those of "multi_exit".

    # Parameters

    backbone : `Backbone`
        The paper uses the first 7 of 12 layers: `num_layers: 7`, with `full_depth: 12` below. Families with rotary or
        disentangled positions (ModernBERT, DeBERTa) need `attend_to_exited`.
    share_pooler : `bool`, optional (default = `True`)
        No effect, because there is one exit.
    hash : `TokenHash`, optional (default = `"frequency"`)
    attend_to_exited : `bool`, optional (default = `False`)
        Whether active tokens also attend to tokens that have exited, as in token-level early exit for sequence
        labelling (Li et al. 2021). In this implementation every layer then computes all tokens: the speed-up applies to
        counted layers only, not to `mac_speedup`.
    full_depth : `int`, optional (default = the backbone's layers)
        The depth that speed-ups are relative to.
    """

    exit_layer_of: Tensor

    tokens_leave: ClassVar[bool] = True
    obstacle: ClassVar[str | None] = "tokens that exit at different layers"

    def __init__(
        self,
        num_labels: int,
        backbone: Backbone,
        pooler: Lazy[Seq2VecEncoder] = Lazy(BertPooler),  # noqa: B008 (how AllenNLP writes a default)
        share_pooler: bool = True,
        dropout: float = 0.1,
        hash: TokenHash | None = None,
        attend_to_exited: bool = False,
        full_depth: int | None = None,
    ) -> None:
        layers = backbone.num_layers
        super().__init__(num_labels, backbone, [layers], pooler, share_pooler, dropout)
        check_number("full_depth", full_depth or layers, low=layers)
        if not attend_to_exited:
            check_positions(backbone)
        self.hash = hash if hash is not None else FrequencyHash()
        self.attend_to_exited = attend_to_exited
        self.full_depth = layers if full_depth is None else full_depth
        self.register_buffer("exit_layer_of", torch.full((backbone.config.vocab_size,), layers))

    def prepare(self, instances: Iterable[Instance]) -> None:
        """Computes the table from the training data."""
        ids = [torch.tensor(instance.encoding["input_ids"]) for instance in instances]
        counts = torch.bincount(torch.cat(ids), minlength=len(self.exit_layer_of))
        self.exit_layer_of.copy_(self.hash.layers(counts, self.backbone.num_layers))

    def depth_of(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """`(batch, tokens)` int64: the last layer of each token, 0 for padding."""
        depth = self.exit_layer_of[input_ids]
        depth[:, 0] = self.backbone.num_layers
        return depth.masked_fill(~attention_mask, 0)

    def embed(self, batch: dict[str, Tensor], backbone: Any = None) -> BackboneState:
        state = super().embed(batch, backbone)
        return with_memory(state, {DEPTH: self.depth_of(batch["input_ids"], state.attention_mask)}, {DEPTH: (1,)})

    def _advance(self, exit_number: int, state: BackboneState, backbone: Any) -> BackboneState:
        depth = state.batched[DEPTH]
        if self.attend_to_exited:
            for layer in range(1, backbone.num_layers + 1):
                running = (depth >= layer).unsqueeze(-1)
                after = backbone.layer(layer, state).hidden_states
                state = state.advance(torch.where(running, after, state.hidden_states))
            return state
        # Tokens in descending order of depth: the active tokens of each layer are a prefix.
        order = depth.argsort(dim=1, descending=True, stable=True)
        depth = depth.gather(1, order)
        hidden = pick(state.hidden_states, order)
        bias = permuted_bias(state.shared[BIAS], order) if BIAS in state.shared else None
        finished = []
        for layer, longest in enumerate(self._longest(depth), start=1):
            finished.append(hidden[:, longest:])
            hidden = hidden[:, :longest]
            running = depth[:, :longest] >= layer
            entering = backbone.make_state(hidden, running)
            if bias is not None:
                entering.shared = {**entering.shared, BIAS: bias[:, :, :longest, :longest]}
            after = backbone.layer(layer, entering).hidden_states
            hidden = torch.where(running.unsqueeze(-1), after, hidden)
        hidden = torch.cat([hidden, *reversed(finished)], 1)
        return state.advance(pick(hidden, order.argsort(dim=1)))

    def _longest(self, depth: Tensor) -> list[int]:
        """For each layer the maximum number of active tokens of a sample. One device synchronization per batch."""
        layers = torch.arange(1, self.backbone.num_layers + 1, device=depth.device)
        return (depth[None] >= layers[:, None, None]).sum(-1).amax(-1).tolist()

    def token_depth(self, samples: Iterable[Sequence[int]]) -> TokenDepth:
        device = self.exit_layer_of.device
        depths = []
        for sample in samples:
            ids = torch.as_tensor(sample, device=device)[None]
            depths.append(self.depth_of(ids, torch.ones_like(ids, dtype=torch.bool))[0].cpu())
        return depth_of_samples(self, depths, self.full_depth, saves=not self.attend_to_exited)


def check_positions(backbone: Backbone) -> None:
    """Raises a `ConfigurationError` if the layers use position information that does not allow removing tokens."""
    state = backbone.make_state(torch.zeros(1, 2, backbone.hidden_size))
    if set(state.shared) - {BIAS}:
        raise ConfigurationError(
            f"model.encoder.backbone: found {backbone.config.model_type}, whose layers read positions from "
            f"{sorted(state.shared)}; allowed with 'hash_exit': absolute positions or a position bias, or "
            "attend_to_exited: true"
        )


def pick(hidden: Tensor, order: Tensor) -> Tensor:
    """`(batch, tokens, hidden)` with the tokens of each sample in the order of its row of `order`."""
    return hidden.gather(1, order.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def permuted_bias(bias: Tensor, order: Tensor) -> Tensor:
    """`(1, heads, tokens, tokens)` to `(batch, heads, tokens, tokens)`: rows and columns in each sample's order."""
    return bias[0][:, order[:, :, None], order[:, None, :]].transpose(0, 1)
