"""Trace files: `.npz` archives of arrays without pickled objects; and checks of their parts, as `trace: ...`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import DataError
from beem_plugin.common.files import atomic_write


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes a `.npz` file, first under a temporary name."""
    with atomic_write(path, "wb") as file:
        np.savez_compressed(file, meta=np.array(json.dumps(dict(meta))), **arrays)  # type: ignore[arg-type]


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file; a `DataError` names a file that is missing, damaged or something else."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such trace file; write one with `allennlp trace`") from None
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(f"{path}: not a readable trace file: {error.strerror}") from None
    except (ValueError, OSError, EOFError) as error:
        reason = "it is no .npz, or holds pickled objects" if isinstance(error, ValueError) else error
        raise DataError(f"{path}: not a trace file: {reason}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error share no narrower base class
        raise DataError(f"{path}: damaged trace file: {error}") from None


def require_arrays(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> None:
    missing = sorted(set(names) - set(arrays))
    if missing:
        raise DataError(f"lacks {missing}; found {sorted(arrays)}")


def meta_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The metadata of a trace file, `{}` if it has none."""
    try:
        meta = json.loads(str(arrays["meta"])) if "meta" in arrays else {}
    except json.JSONDecodeError as error:
        raise DataError(f"meta is not JSON: {error}") from None
    if not isinstance(meta, dict):
        raise DataError(f"meta is a JSON {type(meta).__name__}, allowed: an object")
    return meta


def signals_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The arrays `signal_<name>` as float32 tensors by name."""
    return {
        name.removeprefix("signal_"): torch.from_numpy(value.astype(np.float32))
        for name, value in arrays.items()
        if name.startswith("signal_")
    }


def as_labels(labels: Tensor, is_regression: bool = False) -> Tensor:
    """
    Whole numbers of any type as int64, of a regression floating ones as float32; anything else is a `DataError`, since
    the unknown labels -1 and NaN would change their meaning.
    """
    if is_regression != labels.dtype.is_floating_point or labels.dtype == torch.bool:
        kind = "of a regression (one logit) must be floating" if is_regression else "must be integers"
        raise DataError(f"trace: labels {kind}, found {labels.dtype}")
    return labels.to(torch.float32 if is_regression else torch.int64)


def check_samples(logits: Tensor, labels: Tensor, ids: Sequence[str] | None) -> None:
    """Raises a `DataError` unless there are a valid label and an id for each of `(samples, exits, labels)` logits."""
    if logits.ndim != 3:
        raise DataError(f"trace: logits must be (samples, exits, labels), found shape {tuple(logits.shape)}")
    samples, exits, num_labels = logits.shape
    for what, count in (("logits have no exit", exits), ("no logit an exit", num_labels)):
        if count < 1:
            raise DataError(f"trace: {what}, found shape {tuple(logits.shape)}")
    if labels.shape != (samples,):
        raise DataError(f"trace: {samples} samples in logits, but labels have shape {tuple(labels.shape)}")
    if ids is not None and len(ids) != samples:
        raise DataError(f"trace: {samples} samples in logits, but {len(ids)} ids")
    if labels.is_floating_point():
        if bool(labels.isinf().any()):
            raise DataError(f"trace: sample {int(labels.isinf().nonzero()[0])} has an infinite label")
    elif bool((wrong := (labels >= num_labels) | (labels < -1)).any()):
        row = int(wrong.nonzero()[0])
        raise DataError(f"trace: sample {row} has label {int(labels[row])}, allowed: -1 (unknown) to {num_labels - 1}")


def check_exits(per_exit: Mapping[str, Tensor], samples: int, exits: int) -> None:
    """Raises a `DataError` unless the tensors are `(samples, exits)`, logits with their labels, and finite."""
    for name, value in per_exit.items():
        if value.shape[:2] != (samples, exits) or (value.ndim > 2 and name != "logits"):
            raise DataError(f"trace: {name} has shape {tuple(value.shape)}, allowed: {(samples, exits)}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            row, column = (~torch.isfinite(value)).nonzero()[0, :2].tolist()
            found = value[row, column].tolist()
            raise DataError(f"trace: {name} of sample {row} at exit {column + 1} are not finite: {found}")


def check_layers(meta: Mapping[str, Any], exits: int) -> None:
    """Raises a `DataError` unless `exit_layers` and `exit_costs` of `meta`, where given, rise from exit to exit."""
    layers, costs = meta.get("exit_layers"), meta.get("exit_costs")
    if layers is not None and not (_rises(layers, exits, int) and layers[0] >= 1):
        raise DataError(f"trace: meta.exit_layers must be {exits} rising layer numbers from 1, found {layers}")
    if costs is not None and not (_rises(costs, exits, (int, float)) and costs[0] > 0):
        raise DataError(f"trace: meta.exit_costs must be {exits} rising numbers above 0, found {costs}")


def _rises(values: Any, count: int, kind: Any) -> bool:
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        return False
    return len(values) == count and list(values) == sorted(set(values)) and bool not in map(type, values)
