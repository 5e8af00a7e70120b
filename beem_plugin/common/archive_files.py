"""The files of an archive: names, packing, digests, weights as tensors."""

import errno
import hashlib
import json
import logging
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from beem_plugin.common.errors import BeemError, DataError
from beem_plugin.common.files import atomic_write, scratch_folder, write_errors_named, write_json
from beem_plugin.common.outputs import ARCHIVE_FOLDERS
from beem_plugin.common.strict_json import read_json_object

logger = logging.getLogger(__name__)

ARCHIVE_NAME = "model.tar.gz"
CONFIG_NAME = "config.json"
META_NAME = "meta.json"
WEIGHTS_NAME = "weights.safetensors"
BEST_WEIGHTS = "best.th"
ALLOWED = "allowed: a model.tar.gz, or the folder of a training run"
PARTS = ARCHIVE_FOLDERS

_LATER_DIGESTED = ("tokenizer", "image_processor")
_DIGESTED = (WEIGHTS_NAME, "vocabulary", "calibration", *_LATER_DIGESTED)
"""Files that belong together: labels, calibration and the numbers of tokens depend on the weights."""


@contextmanager
def opened_archive(path: str | Path) -> Iterator[Path]:
    """A folder with an archive's files: a temporary one for `model.tar.gz`, or a serialization directory."""
    path = Path(path)
    if path.is_dir():
        if (path / "export.json").exists():
            raise DataError(f"{path}: an exported folder, {ALLOWED}; its runner.py predicts with it")
        if not (path / CONFIG_NAME).exists():
            raise DataError(f"{path}: no archive and no serialization directory: it has no {CONFIG_NAME}")
        check_json_files(path)
        if "model_type" in read_json_object(path / CONFIG_NAME, CONFIG_NAME):
            raise DataError(
                f"{path}: a pretrained network, {ALLOWED}, or in a config model.encoder.backbone.model_name"
            )
        yield path
        return
    if path.is_file() and path.suffix in (".json", ".jsonnet", ".yaml", ".yml"):
        raise DataError(f"{path}: a config, {ALLOWED}, which `allennlp train {quote(str(path))}` makes")
    with opened_folder(path) as folder:
        if not (folder / CONFIG_NAME).exists():
            raise DataError(f"{path}: not a model archive: it has no {CONFIG_NAME}")
        try:
            check_json_files(folder)
            yield folder
        except BeemError as error:
            message = str(error).replace(f"{folder}/", f"{path}: ")  # the folder is gone when it is read
            inside = (CONFIG_NAME, META_NAME, WEIGHTS_NAME, *(f"{part}/" for part in PARTS))
            error.args = (f"{path}: {message}" if message.startswith(inside) else message,)
            raise


@contextmanager
def opened_folder(path: str | Path) -> Iterator[Path]:
    """A folder, or a temporary one with the content of a tar file."""
    path = Path(path)
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise DataError(f"{path}: no such archive")
    with scratch_folder() as folder:
        try:
            with tarfile.open(path, "r:*") as archive, write_errors_named(folder):
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, ValueError, RecursionError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise DataError(f"{path}: not a readable archive: {error}") from None
        yield folder


def package_version() -> str:
    try:
        return version("beem_plugin")
    except PackageNotFoundError:
        return "unknown"


def read_meta(folder: Path) -> dict[str, Any]:
    """`meta.json`; empty for a directory without one."""
    meta = read_json_object(folder / META_NAME, META_NAME) if (folder / META_NAME).exists() else {}
    if meta.get("version") not in (None, package_version()):
        logger.warning("the archive was made by version %s, this is %s", meta["version"], package_version())
    return meta


def check_json_files(folder: Path) -> None:
    """Raises a `DataError` that names the first JSON file of an archive that does not hold an object."""
    parts = [path for part in PARTS for path in sorted((folder / part).rglob("*.json"))]
    for path in (folder / CONFIG_NAME, folder / META_NAME, *parts):
        if path.is_file():
            read_json_object(path, str(path.relative_to(folder)))


def verify_digests(folder: Path, meta: Mapping[str, Any], without: str | None = None) -> None:
    """Raises a `DataError` for a file that differs from its digest in `meta.json`, which older archives do not have."""
    expected = meta.get("digests")
    if expected is None:
        logger.info("no digests in %s: weights, labels, calibration and tokenizer are not verified", META_NAME)
        return
    if not isinstance(expected, dict):
        raise DataError(f"{META_NAME}: digests: found {type(expected).__name__}, allowed: a block {{...}}")
    parts = {name.split("/")[0] for name in expected}
    uncovered = {without, *(name for name in _LATER_DIGESTED if name not in parts)}
    found = digests({name: folder / name for name in _DIGESTED if name not in uncovered})
    for name in sorted({*expected, *found} - {without}):
        if expected.get(name) != found.get(name):
            how = "is missing" if name not in found else "was added" if name not in expected else "was changed"
            raise DataError(f"{name}: {how} since the archive was written: its digest in {META_NAME} does not match")


def digests(members: Mapping[str, Path]) -> dict[str, str]:
    """The SHA-256 digests of the files that belong together, by name in the archive."""
    found: dict[str, str] = {}
    for name in _DIGESTED:
        path = members.get(name)
        if path is None or not path.exists():
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest = hashlib.sha256()
                with file.open("rb") as opened:
                    while chunk := opened.read(1 << 20):
                        digest.update(chunk)
                found[Path(name, file.relative_to(path)).as_posix()] = digest.hexdigest()
    return found


def write_archive(members: Mapping[str, Path], target: Path) -> Path:
    """Packs files and folders under the given names, with their digests in `meta.json`."""
    with scratch_folder() as folder:
        meta = read_json_object(members[META_NAME]) if META_NAME in members else {}
        write_json(folder / META_NAME, {**meta, "digests": digests(members)})
        # Weights compress by less than a tenth, which would take most of the time of archiving and loading.
        with (
            atomic_write(target, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=0) as archive,
        ):
            for name, path in {**members, META_NAME: folder / META_NAME}.items():
                archive.add(path, arcname=name)
    return target


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


def state_of(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights of an archive, of a run's directory, or in a file."""
    try:
        if Path(path).suffix in (".safetensors", ".th", ".pt", ".bin"):
            return read_state(Path(path))
        with opened_archive(path) as folder:
            return read_state(find_weights(folder, None))
    except (BeemError, FileNotFoundError):
        raise
    except Exception as error:  # of the libraries that read weights
        raise DataError(f"{path}: not readable as weights: {' '.join(str(error).split())[:200]}") from None


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
    with write_errors_named(path):
        save_file(kept, str(path), metadata={"aliases": json.dumps(aliases)})


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """A state dict from a file of safetensors or of `torch.save`; only tensors are unpickled."""
    if path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True)
    with safe_open(str(path), framework="pt") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return {**state, **{name: state[first] for name, first in aliases.items()}}
