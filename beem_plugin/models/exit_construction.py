"""Parts of networks with exits, built from their config blocks."""

from collections.abc import Sequence

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder

from beem_plugin.backbones import Backbone
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, registered_name
from beem_plugin.exits.branches import Branch, TransformerBranch
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signal_modules import SignalModule


def build_pooler(pooler: Lazy[Seq2VecEncoder], backbone: Backbone) -> Seq2VecEncoder:
    size = backbone.hidden_size
    built = pooler.construct(embedding_dim=size)
    if built.get_input_dim() != size:
        raise ConfigurationError(
            f"pooler: takes vectors of {built.get_input_dim()}, found a backbone with hidden size {size}"
        )
    parameters = backbone.pretrained_pooler()
    if isinstance(built, BertPooler) and built.pretrained and parameters is not None:
        built.initialize(*parameters)
    return built


def build_signals(
    signals: list[Lazy[SignalModule]] | None, num_exits: int, pooled_size: int, num_labels: int
) -> torch.nn.ModuleDict:
    """The signal modules by name."""
    modules = torch.nn.ModuleDict()
    for lazy in signals or []:
        module = lazy.construct(num_exits=num_exits, pooled_size=pooled_size, num_labels=num_labels)
        if module.name in modules:
            raise ConfigurationError(f"signals: found {module.name!r} twice, allowed: each once")
        modules[module.name] = module
    return modules


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


def causal_branch(lazy: Lazy[Branch], hidden_size: int) -> Branch:
    """A branch of an exit of a caption decoder."""
    branch = lazy.construct(hidden_size=hidden_size)
    if branch.mixes_tokens and not isinstance(branch, TransformerBranch):
        raise ConfigurationError(
            f"decoder.branch: found {registered_name(Branch, branch)!r}, which reads other tokens, and decoding stores "
            "no keys and values for it; allowed: 'transformer', 'adapter', 'mlp'"
        )
    return branch
