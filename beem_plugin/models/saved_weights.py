"""Weights of a model from files: an archive's, checked, and initial ones from another trained model."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from beem_plugin.backbones.loading import shown
from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.common.archive_files import find_weights, opened_archive, read_state
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import FromParams
from beem_plugin.models.model import Model

logger = logging.getLogger(__name__)

_READABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load_weights(model: Model, path: Path, made_with: str | None = None) -> None:
    """Loads a state dict, written with transformers `made_with`; a `DataError` names tensors that do not fit."""
    try:
        state = dict(read_state(path))
    except MemoryError:
        raise
    except Exception as error:  # the reader raises errors of any type for a file that is no checkpoint
        kind = type(error).__name__
        raise DataError(
            f"{path}: not a weights file ({kind}); allowed: .safetensors, or .th with tensors only"
        ) from None
    expected = model.state_dict()
    state = renamed(state, expected)
    check_tensors(state, expected, str(path.name))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        found = differences(state, expected) or " ".join(str(error).split())
        raise DataError(
            f"{path}: the weights do not fit the model: {found} (written under transformers "
            f"{made_with or 'of an unknown version'}, this is {transformers.__version__})"
        ) from None


def differences(state: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> str:
    """Missing and unexpected names, and tensors of a different shape, in one line; empty if there are none."""
    kinds = {
        "missing": [name for name in model if name not in state],
        "unexpected": [name for name in state if name not in model],
        "of another shape": [
            f"{name} {list(value.shape)} for {list(model[name].shape)}"
            for name, value in state.items()
            if name in model and value.shape != model[name].shape
        ],
    }
    return "; ".join(f"{kind}: {shown(names)}" for kind, names in kinds.items() if names)


def check_tensors(state: Mapping[str, torch.Tensor], model: Mapping[str, torch.Tensor], name: str) -> None:
    """Raises a `DataError` for a tensor of a different kind than the model's, or with values that are not finite."""
    for key, value in state.items():
        expected = model.get(key)
        if expected is None or value.shape != expected.shape:
            continue  # reported by `differences`
        found, allowed = (str(tensor.dtype).removeprefix("torch.") for tensor in (value, expected))
        if value.is_floating_point() != expected.is_floating_point():
            kind = "a floating-point type" if expected.is_floating_point() else allowed
            raise DataError(f"{name}: {key}: found {found}, allowed: {kind}")
        if not value.is_floating_point():
            continue
        if value.dtype not in _READABLE:
            raise DataError(f"{name}: {key}: found {found}, allowed: float16, bfloat16, float32 or float64")
        if not bool(value.isfinite().all()) and bool(expected.isfinite().all()):
            count = int((~value.isfinite()).sum())
            raise DataError(f"{name}: {key}: {count} of {value.numel()} values are not finite")


TEXT_ONLY = [r"transformer_model\.encoder\.", r"enc_to_dec_proj", r"crossattention", r"ln_cross_attn"]
"""Parameters that are not trained in a language model without images."""


class InitialWeights(FromParams):
    """
    Copies parameters of the same name from another model's archive. A string is short for `{"archive": string}`.

    # Parameters

    archive : `str`
        A `model.tar.gz`, a serialization directory, or a weights file (`.safetensors`, `.th`).
    include : `list[str]`, optional (default = `["^decoder\\\\."]`)
        Regular expressions; a parameter is copied if its name matches one of them and none of `exclude`.
    exclude : `list[str]`, optional (default = image encoder and cross-attention)
        The default is for an archive whose decoder was trained on text only. `[]` excludes nothing.
    """

    def __init__(self, archive: str, include: list[str] | None = None, exclude: list[str] | None = None) -> None:
        self.archive = archive
        self.include = [re.compile(pattern) for pattern in include or [r"^decoder\."]]
        self.exclude = [re.compile(pattern) for pattern in (TEXT_ONLY if exclude is None else exclude)]

    def copy_into(self, model: torch.nn.Module) -> list[str]:
        """Returns the names of the copied parameters; raises `ConfigurationError` if none fits or a shape differs."""
        state = model.state_dict()
        found = {
            name: value for name, value in renamed(read_weights(self.archive), state).items() if self.matches(name)
        }
        common = [name for name in found if name in state]
        if not common:
            raise ConfigurationError(f"model.initialize_from: {self.archive} has no parameter in common with the model")
        for name in common:
            if found[name].shape != state[name].shape:
                raise ConfigurationError(
                    f"model.initialize_from: {name} has shape {tuple(found[name].shape)} in {self.archive}, the model "
                    f"has {tuple(state[name].shape)}; allowed: the same decoder and tokenizer, or an `exclude` that "
                    "leaves it out"
                )
        model.load_state_dict({name: found[name] for name in common}, strict=False)
        unchanged = sorted(name for name in state if self.matches(name) and name not in found)
        logger.info("initialised %d parameters from %s, %d are unchanged", len(common), self.archive, len(unchanged))
        return common

    def matches(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.include) and not any(
            pattern.search(name) for pattern in self.exclude
        )


def read_weights(path: str) -> dict[str, torch.Tensor]:
    if Path(path).suffix in (".safetensors", ".th"):
        if not Path(path).exists():
            raise ConfigurationError(f"model.initialize_from: {path}: no such weights file")
        return read_state(Path(path))
    with opened_archive(path) as folder:
        return read_state(find_weights(folder, None))
