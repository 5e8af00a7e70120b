"""The directory of a training run: when it may be written to, and what an archived run needs in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from beem_plugin.archival import CONFIG_NAME, META_NAME, package_version
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import remove_leftovers, write_json
from beem_plugin.common.params import diff_configs

METRICS_NAME = "metrics.json"
VOCABULARY_DIR = "vocabulary"

#: What tells a run's directory from one that --force must not delete.
MARKS = (CONFIG_NAME, META_NAME, METRICS_NAME, VOCABULARY_DIR, "out.log", "out_worker0.log")


def check_serialization_dir(directory: Path, config: dict[str, Any], recover: bool, force: bool) -> None:
    """
    Raises `ConfigurationError` unless a run with this config may use the directory. Changes nothing.

    # Parameters

    directory : `Path`
    config : `dict[str, Any]`
        With overrides applied.
    recover : `bool`
        The directory must hold a run, and its config must be the same.
    force : `bool`
        The directory may hold a run, which will be deleted.
    """
    if recover and force:
        raise ConfigurationError("--recover and --force contradict each other: give one of them")
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"serialization directory {directory}: it is a file")
    is_filled = directory.is_dir() and any(directory.iterdir())
    if recover:
        if not is_filled:
            raise ConfigurationError(f"--recover: there is no run in {directory}")
        _check_same_config(directory, config)
    elif is_filled and not force:
        raise ConfigurationError(
            f"serialization directory {directory} is not empty: --recover goes on with the run in it, "
            "--force deletes it"
        )
    elif is_filled and not any((directory / mark).exists() for mark in MARKS):
        raise ConfigurationError(
            f"--force: {directory} does not look like a training run (none of {', '.join(MARKS)} is in it), so "
            "it will not be deleted"
        )


@contextmanager
def prepared_directory(directory: Path, recover: bool, force: bool) -> Iterator[None]:
    """
    Makes the directory for the construction of a run. If the block raises, everything is as it was: a run that cannot
    be constructed leaves nothing behind, and what `force` replaces is deleted only when the block has ended well.
    """
    aside = directory.with_name(f".{directory.name}.replaced")
    is_replacing = force and directory.is_dir() and any(directory.iterdir())
    if is_replacing:
        shutil.rmtree(aside, ignore_errors=True)
        directory.rename(aside)
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    try:
        yield
    except BaseException:
        if not recover:
            shutil.rmtree(directory, ignore_errors=True)
        if is_replacing:
            aside.rename(directory)
        raise
    if is_replacing:
        shutil.rmtree(aside)


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """`config.json` and `meta.json`; a run that goes on keeps its own, which says what it was started with."""
    write_json(directory / CONFIG_NAME, config)
    if not (directory / META_NAME).is_file():
        write_json(directory / META_NAME, {"version": package_version(), "transformers": transformers.__version__})


def _check_same_config(directory: Path, config: dict[str, Any]) -> None:
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise ConfigurationError(f"--recover: {directory} holds no {CONFIG_NAME}")
    saved = json.loads(path.read_text(encoding="utf-8"))
    # Through JSON, so that tuples and lists, 1 and 1.0 do not differ by their way through a file.
    differences = diff_configs(saved, json.loads(json.dumps(config)))
    if differences:
        listed = "; ".join(f"{key}: {old!r} -> {new!r}" for key, old, new in differences)
        raise ConfigurationError(f"--recover: the config differs from the one in {directory}: {listed}")
