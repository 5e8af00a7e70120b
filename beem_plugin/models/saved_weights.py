"""Weights from a file into a model, checked name by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from beem_plugin.backbones.loading import shown
from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.common.archive_files import read_state
from beem_plugin.common.errors import DataError
from beem_plugin.models.model import Model


def load_weights(model: Model, path: Path, made_with: str | None = None) -> None:
    """
    Loads a state dict; a missing or unexpected tensor is an error that names it.

    # Parameters

    model : `Model`
    path : `Path`
        Written under any release of transformers: parameters under another release's names are found.
    made_with : `str`, optional (default = `None`)
        The release of transformers that the weights were written under, where that is known.
    """
    try:
        state = dict(read_state(path))
    except MemoryError:
        raise
    except Exception as error:  # a file that is no checkpoint fails in the reader in any way
        kind = type(error).__name__
        raise DataError(
            f"{path}: not a weights file ({kind}); allowed: .safetensors, or .th with tensors alone"
        ) from None
    ours = model.state_dict()
    state = renamed(state, ours)
    check_tensors(state, ours, str(path.name))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        found = differences(state, ours) or " ".join(str(error).split())
        raise DataError(
            f"{path}: the weights do not fit the model: {found} (written under transformers "
            f"{made_with or 'of an unknown version'}, this is {transformers.__version__})"
        ) from None


def differences(state: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> str:
    """The names that only one of two state dicts has, and those of other shapes."""
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
    """Raises a `DataError` for a tensor of another kind than the model's, or with values that are not finite."""
    for key, value in state.items():
        ours = model.get(key)
        if ours is None or value.shape != ours.shape:
            continue  # reported with the others of its kind
        if value.is_floating_point() != ours.is_floating_point():
            kind = "a floating-point type" if ours.is_floating_point() else str(ours.dtype).removeprefix("torch.")
            found = str(value.dtype).removeprefix("torch.")
            raise DataError(f"{name}: {key}: found {found}, allowed: {kind}")
        if value.is_floating_point() and not bool(value.isfinite().all()) and bool(ours.isfinite().all()):
            count = int((~value.isfinite()).sum())
            raise DataError(f"{name}: {key}: {count} of {value.numel()} values are not finite")
