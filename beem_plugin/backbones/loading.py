"""Configurations and weights of transformers models, with errors for the person who wrote the model's name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import logging as transformers_logging

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.data.hub import hub_error, hub_options

logger = logging.getLogger(__name__)


def read_config(path: str, key: str) -> dict[str, Any]:
    """The entries of the model's `config.json`, from a folder, the hub or the hub's local cache."""
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ConfigurationError(f"{key}: the folder {path!r} has no config.json")
    try:
        entries, _ = PreTrainedConfig.get_config_dict(path, **options(path))
    except (OSError, ValueError) as error:
        raise unreadable(path, key, error) from error
    return entries


def options(path: str) -> dict[str, Any]:
    """The hub is asked only about what is no folder: to find out that it is out of reach takes seconds."""
    return {} if Path(path).is_dir() else hub_options()


def unreadable(path: str, key: str, error: Exception) -> ConfigurationError:
    """The error for a model that could not be read."""
    if Path(path).is_dir():
        return ConfigurationError(f"{key}: the folder {path!r} cannot be read: {one_line(error)}")
    return hub_error(key, path, error)


def make_config(entries: dict[str, Any], key: str) -> PreTrainedConfig:
    """The configuration object of the family that `entries["model_type"]` names."""
    try:
        config = CONFIG_MAPPING[entries["model_type"]].from_dict(dict(entries))
    except (StrictDataclassError, TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{key}: {one_line(error)}") from error
    if getattr(config, "is_decoder", False):
        raise ConfigurationError(f"{key}: found a decoder ('is_decoder' true), allowed: encoders")
    return config


def check_keys(entries: dict[str, Any], model_type: str, extra: Iterable[str], key: str) -> None:
    """An unknown key would otherwise be stored in the configuration and never be read."""
    known = CONFIG_MAPPING[model_type]()
    names = set(known.to_dict()) | set(known.attribute_map) | set(extra)
    for name in entries:
        if name not in names and not hasattr(known, name):
            raise ConfigurationError(not_allowed(f"{key}: unknown key for {model_type!r}", name, names))


def override(config: PreTrainedConfig, overrides: dict[str, Any], extra: Iterable[str], key: str) -> None:
    """Replaces entries of `config`."""
    check_keys(overrides, config.model_type, extra, key)
    depth_names = ("num_hidden_layers", config.attribute_map.get("num_hidden_layers"))
    for name, value in overrides.items():
        if name == "model_type" or config.attribute_map.get(name, name) in depth_names:
            raise ConfigurationError(f"{key}: {name!r} cannot be overridden; 'num_layers' is what shortens a model")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{key}.{name}: found {value!r}: {one_line(error)}") from error


def random_model(config: PreTrainedConfig, attn_implementation: str, key: str) -> Any:
    """A model with the family's own initialisation, drawn from torch's global generator, without a pooler."""
    model_class: Any = MODEL_MAPPING[type(config)]
    has_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    without_pooler = {"add_pooling_layer": False} if has_pooler else {}
    try:
        return AutoModel.from_config(
            config, dtype=torch.float32, attn_implementation=attn_implementation, **without_pooler
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{key}: the configuration makes no model: {one_line(error)}") from error


def pretrained_model(
    path: str, config: PreTrainedConfig, attn_implementation: str, key: str, shortened: bool
) -> tuple[Any, bool]:
    """
    The model with its checkpoint's weights in float32, and whether its pooler's weights were among them.

    Every weight of the encoder must be in the checkpoint, in the right shape. Heads in the checkpoint are dropped;
    encoder weights in it that have no place in the model are named in a warning.
    """
    try:
        with quiet(path):
            model, info = AutoModel.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                attn_implementation=attn_implementation,
                output_loading_info=True,
                # A wrong shape is reported here, by name, rather than in a table on the console.
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **options(path),
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise unreadable(path, key, error) from error
    missing = {name for name in info["missing_keys"] if not name.startswith("pooler.")}
    mismatched = {name if isinstance(name, str) else name[0] for name in info["mismatched_keys"]}
    if missing:
        raise ConfigurationError(f"{key}: the checkpoint {path!r} lacks weights: {shown(missing)}")
    if mismatched:
        raise ConfigurationError(
            f"{key}: weights in the checkpoint {path!r} have other shapes than its configuration says: "
            f"{shown(mismatched)}"
        )
    unused = {name for name in info["unexpected_keys"] if not shortened and belongs_to(model, name)}
    if unused:
        logger.warning("%s: %r has no use for weights in its checkpoint: %s", key, path, shown(unused))
    return model, not any(name.startswith("pooler.") for name in info["missing_keys"])


def belongs_to(model: Any, name: str) -> bool:
    """Whether a checkpoint's key is of the encoder itself rather than of a head on it."""
    if name.endswith(("position_ids", "token_type_ids")):  # buffers that old checkpoints stored
        return False
    name = name.removeprefix(f"{model.base_model_prefix}.")
    return name.split(".")[0] in {child for child, _ in model.named_children()} - {"pooler"}


def shown(names: Iterable[str], limit: int = 5) -> str:
    """The first few names and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + more


def one_line(error: Exception) -> str:
    """An exception's text without line breaks."""
    return " ".join(str(error).split())


@contextmanager
def quiet(path: str) -> Iterator[None]:
    """
    Without transformers' table of keys, as what matters of it is an error or a warning of ours, and without a progress
    bar where nothing is downloaded.
    """
    verbosity = transformers_logging.get_verbosity()
    hide_bar = Path(path).is_dir() and transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    if hide_bar:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if hide_bar:
            transformers_logging.enable_progress_bar()
