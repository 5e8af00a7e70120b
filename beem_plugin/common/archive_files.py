"""The files of an archive: tar balls, weights, and what they are called. Nothing here knows of models."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from beem_plugin.common.errors import DataError

ARCHIVE_NAME = "model.tar.gz"
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "weights.safetensors"
BEST_WEIGHTS = "best.th"


@contextmanager
def opened_archive(path: str | Path) -> Iterator[Path]:
    """The folder with an archive's parts: a `model.tar.gz` unpacked for the while, or a serialization directory."""
    path = Path(path)
    if path.is_dir():
        if not (path / CONFIG_NAME).exists():
            raise DataError(f"{path}: no archive and no serialization directory: it has no {CONFIG_NAME}")
        yield path
        return
    if not path.exists():
        raise DataError(f"{path}: no such archive")
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(path, "r:*") as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"{path}: not a readable archive: {error}") from None
        if not (Path(folder) / CONFIG_NAME).exists():
            raise DataError(f"{path}: not a model archive: it has no {CONFIG_NAME}")
        yield Path(folder)


def find_weights(folder: Path, weights_file: str | Path | None) -> Path:
    if weights_file is not None:
        path = Path(weights_file)
        if not path.exists():
            raise DataError(f"{path}: no such weights file")
        return path
    for name in (WEIGHTS_NAME, BEST_WEIGHTS):
        if (folder / name).exists():
            return folder / name
    raise DataError(f"{folder}: no {WEIGHTS_NAME} and no {BEST_WEIGHTS}")


def save_state(state: dict[str, torch.Tensor], path: Path) -> None:
    """Writes a state dict as safetensors; tensors that share memory are written once."""
    first_with: dict[int, str] = {}
    kept: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, value in state.items():
        first = first_with.setdefault(value.data_ptr() if value.numel() else id(value), name)
        if first == name or state[first].shape != value.shape:
            kept[name] = value.contiguous()
        else:
            aliases[name] = first
    save_file(kept, str(path), metadata={"aliases": json.dumps(aliases)})


def write_tar(members: dict[str, Path], target: Path) -> Path:
    """Packs files and folders under the given names; the archive appears whole or not at all."""
    part = target.with_name(target.name + ".part")
    try:
        # Weights hardly compress; the fastest level keeps archiving a large model to seconds.
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            for name, path in members.items():
                archive.add(path, arcname=name)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """A state dict from safetensors, or from what `torch.save` wrote; nothing but tensors is unpickled."""
    if path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True)
    with safe_open(str(path), framework="pt") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return {**state, **{name: state[first] for name, first in aliases.items()}}
