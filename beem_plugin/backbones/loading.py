"""Reads configurations and weights of transformers models, with errors that name the config key."""

import functools
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
    """Arguments of a download; none for a folder, because detecting an unreachable hub takes seconds."""
    return {} if Path(path).is_dir() else hub_options()


def unreadable(path: str, key: str, error: Exception) -> ConfigurationError:
    """The error for a model that cannot be read."""
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
    """Raises a `ConfigurationError` for an unknown key, which transformers would store and never read."""
    known, own = _default_config(model_type)
    names = own | set(extra)
    for name in entries:
        if name not in names and not hasattr(known, name):
            raise ConfigurationError(not_allowed(f"{key}: unknown key for {model_type!r}", name, names))


@functools.cache
def _default_config(model_type: str) -> tuple[PreTrainedConfig, frozenset[str]]:
    """The family's defaults, and the names of its entries."""
    config = CONFIG_MAPPING[model_type]()
    return config, frozenset(config.to_dict()) | frozenset(config.attribute_map)


def override(config: PreTrainedConfig, overrides: dict[str, Any], extra: Iterable[str], key: str) -> None:
    """Replaces entries of `config`."""
    check_keys(overrides, config.model_type, extra, key)
    depth_names = ("num_hidden_layers", config.attribute_map.get("num_hidden_layers"))
    for name, value in overrides.items():
        if name == "model_type" or config.attribute_map.get(name, name) in depth_names:
            raise ConfigurationError(
                f"{key}: {name!r} cannot be overridden; allowed: 'num_layers', which shortens a model"
            )
        try:
            setattr(config, name, value)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{key}.{name}: found {value!r}: {one_line(error)}") from error


def random_model(config: PreTrainedConfig, attn_implementation: str | None, key: str) -> Any:
    """A model without pooler, drawn from torch's global generator; by default with sdpa where the family has it."""
    model_class: Any = MODEL_MAPPING[type(config)]
    has_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    without_pooler = {"add_pooling_layer": False} if has_pooler else {}
    try:
        return AutoModel.from_config(
            config, dtype=torch.float32, attn_implementation=attn_implementation, **without_pooler
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{key}: no model can be built from the configuration: {one_line(error)}") from error


def pretrained_model(
    path: str, config: PreTrainedConfig, attn_implementation: str | None, key: str, shortened: bool
) -> tuple[Any, bool]:
    """
    The encoder with its checkpoint's weights in float32, and whether its pooler's weights were among them. Heads in the
    checkpoint are ignored; encoder weights in it without a place in the model are named in a warning.
    """
    model, info = load_checkpoint(
        AutoModel, path, config, key, may_lack=("pooler.",), attn_implementation=attn_implementation
    )
    unused = {name for name in info["unexpected_keys"] if not shortened and belongs_to(model, name)}
    if unused:
        logger.warning("%s: the model has no place for weights of the checkpoint %r: %s", key, path, shown(unused))
    return model, not any(name.startswith("pooler.") for name in info["missing_keys"])


def load_checkpoint(
    kind: Any, path: str, config: Any, key: str, may_lack: tuple[str, ...], **options_: Any
) -> tuple[Any, dict[str, Any]]:
    """
    A model of transformers' class `kind` with the checkpoint's weights in float32, and its loading information. Weights
    whose names contain a part in `may_lack` may be missing; others that are missing, or of another shape, are a
    `ConfigurationError`, as is a checkpoint that cannot be read. `options_` are arguments of `from_pretrained`.
    """
    try:
        with quiet(path):
            model, info = kind.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                # Another shape is an error below, which names the weight, and not a table on the console.
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **options_,
                **options(path),
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise unreadable(path, key, error) from error
    missing = {name for name in info["missing_keys"] if not any(part in name for part in may_lack)}
    mismatched = {name if isinstance(name, str) else name[0] for name in info["mismatched_keys"]}
    if missing:
        raise ConfigurationError(f"{key}: the checkpoint {path!r} lacks weights: {shown(missing)}")
    if mismatched:
        raise ConfigurationError(
            f"{key}: weights in the checkpoint {path!r} have other shapes than in its configuration: "
            f"{shown(mismatched)}"
        )
    return model, info


def belongs_to(model: Any, name: str) -> bool:
    """Whether a checkpoint's key is one of the encoder and not of a head."""
    if name.endswith(("position_ids", "token_type_ids")):  # buffers in old checkpoints
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
    """Without transformers' table of keys, which our errors replace, and bars for local files."""
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
