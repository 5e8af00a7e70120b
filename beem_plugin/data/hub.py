"""Whether the model hub can be reached, found out at once instead of after a minute of retries."""

from __future__ import annotations

import functools
import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlparse

from beem_plugin.common.archive_files import ARCHIVE_NAME, CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError, DataError, first_line
from beem_plugin.common.inputs import HUB_ID

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
        if not hub_reachable():
            why = "and it is not in the hub's cache; the hub cannot be reached"
        else:
            why = f"and it could not be loaded from the hub: {first_line(error)}"
        raise DataError(f"{name}: no such file or folder, {why}") from None


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
    hint = f" (no folder {name!r} here, though {folder!r} exists)" if os.path.isdir(folder) else ""
    if not hub_reachable():
        why = "is no local folder and not in the hub's cache, and the hub cannot be reached"
    else:
        why = f"could not be loaded from the hub: {first_line(error)}"
    return ConfigurationError(
        f"{key}: {name!r} {why}{hint}; allowed: a hub name, a local folder with the model's files, 'package:minilm'"
    )
