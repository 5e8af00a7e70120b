"""The supported model families, and the construction of a backbone from a model name or a configuration."""

from typing import Any

from beem_plugin.backbones import loading
from beem_plugin.backbones.backbone import Backbone
from beem_plugin.backbones.bert import (
    AlbertBackbone,
    BertBackbone,
    DistilBertBackbone,
    ElectraBackbone,
    MPNetBackbone,
    RobertaBackbone,
)
from beem_plugin.backbones.deberta_v2 import DebertaV2Backbone
from beem_plugin.backbones.modernbert import ModernBertBackbone
from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.data.hub import resolve_model_name

FAMILIES: dict[str, type[TransformerBackbone]] = {
    "albert": AlbertBackbone,
    "bert": BertBackbone,
    "camembert": RobertaBackbone,
    "deberta-v2": DebertaV2Backbone,
    "distilbert": DistilBertBackbone,
    "electra": ElectraBackbone,
    "modernbert": ModernBertBackbone,
    "mpnet": MPNetBackbone,
    "roberta": RobertaBackbone,
    "xlm-roberta": RobertaBackbone,
}

KEY = "model.encoder.backbone"


@Backbone.register("transformer", constructor="from_model")
class PretrainedBackbone(TransformerBackbone):
    """
    A pretrained or randomly initialised encoder of the transformers library, of a family in `FAMILIES`; the model's
    `model_type` selects the adapter class. Either `model_name` or `config` is given.

    Registered as a `Backbone` with name "transformer", which is the default.

    # Parameters

    model_name : `str`, optional (default = `None`)
        A model of the hub, a folder, or `"package:minilm"`.
    config : `dict`, optional (default = `None`)
        `{"model_type": "bert", ...}`: random weights in this shape, drawn from torch's global generator.
    load_weights : `bool`, optional (default = `True`)
        `False` builds the model from its configuration alone, for a state dict that is loaded afterwards.
    config_overrides : `dict`, optional (default = `None`)
        Entries of the model's configuration to replace, such as `{"hidden_dropout_prob": 0.0}`.
    num_layers : `int`, optional (default = all)
        The number of blocks to keep, from the first.
    """

    @classmethod
    def from_model(
        cls,
        model_name: str | None = None,
        config: dict | None = None,
        load_weights: bool = True,
        config_overrides: dict | None = None,
        num_layers: int | None = None,
    ) -> TransformerBackbone:
        """An instance of the family's adapter; see the class for the parameters."""
        if (model_name is None) == (config is None):
            found = "neither" if model_name is None else "both"
            raise ConfigurationError(f"{KEY}: found {found} of 'model_name' and 'config', allowed: one of them")
        key, path, entries = read_entries(model_name, config)
        adapter = family(entries, key if path is None else f"{key} {model_name!r}")
        if path is None:
            loading.check_keys(entries, entries["model_type"], adapter.extra_config_keys, key)
        model_config = loading.make_config(entries, key)
        loading.override(model_config, config_overrides or {}, adapter.extra_config_keys, f"{KEY}.config_overrides")
        shorten(adapter, model_config, num_layers)
        if path is None or not load_weights:
            return adapter(loading.random_model(model_config, adapter.attn_implementation, key), model_name)
        model, has_pooler = loading.pretrained_model(
            path, model_config, adapter.attn_implementation, key, shortened=num_layers is not None
        )
        return adapter(model, model_name, take_pooler(adapter, model, has_pooler))


def read_depth(model_name: str | None, config: dict | None) -> int:
    """The number of blocks of a model that is named, or described by its configuration."""
    key, _, entries = read_entries(model_name, config)
    return family(entries, key).depth(loading.make_config(entries, key))


def read_entries(model_name: str | None, config: dict | None) -> tuple[str, str | None, dict]:
    """The config key that describes the model, its path if it is named, and the entries of its configuration."""
    if model_name is None:
        return f"{KEY}.config", None, dict(config or {})
    key = f"{KEY}.model_name"
    path = resolve_model_name(model_name, key)
    return key, path, loading.read_config(path, key)


def family(entries: dict, what: str) -> type[TransformerBackbone]:
    """The adapter for the `model_type` in a model's configuration."""
    model_type = entries.get("model_type")
    check_choice(f"{what}: 'model_type'", model_type, FAMILIES)
    return FAMILIES[str(model_type)]


def shorten(adapter: type[TransformerBackbone], model_config: Any, num_layers: int | None) -> None:
    """Changes the configuration to that of the first `num_layers` blocks."""
    if num_layers is None:
        return
    depth = adapter.depth(model_config)
    check_number(f"{KEY}.num_layers", num_layers, 1, depth)
    if num_layers < depth:
        adapter.shorten(model_config, num_layers)


def take_pooler(adapter: type[TransformerBackbone], model: Any, is_pretrained: bool) -> Any:
    """Removes the pooler from the model, so that it is neither trained nor stored; returns its pretrained weights."""
    dense = adapter.pooler_of(model)
    if dense is None:
        return None
    model.pooler = None
    return (dense.weight.detach(), dense.bias.detach()) if is_pretrained else None
