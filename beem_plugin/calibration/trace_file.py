"""Trace files: `.npz` archives of arrays without pickled objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
