"""Loads a weights file into a model and checks its tensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from beem_plugin.backbones.loading import shown
from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.common.archive_files import read_state
from beem_plugin.common.errors import DataError
from beem_plugin.models.model import Model

_READABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load_weights(model: Model, path: Path, made_with: str | None = None) -> None:
    """
    Loads a state dict, written with transformers `made_with` if that is known; renamed parameters are mapped. Raises a
    `DataError` that names missing and unexpected tensors.
    """
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
