"""The directory of a training run."""

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import transformers

from beem_plugin.common.archive_files import CONFIG_NAME, META_NAME, package_version
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import locked, remove_leftovers, write_json
from beem_plugin.common.outputs import check_replaced
from beem_plugin.common.params import diff_configs

METRICS_NAME = "metrics.json"
VOCABULARY_DIR = "vocabulary"

#: --force deletes only a directory with one of these.
MARKS = (CONFIG_NAME, META_NAME, METRICS_NAME, VOCABULARY_DIR, "out.log", "out_worker0.log")


def check_serialization_dir(directory: Path, config: dict[str, Any], recover: bool, force: bool) -> None:
    """Raises `ConfigurationError` unless a run with this config, overrides applied, may use the directory."""
    if recover and force:
        raise ConfigurationError("--recover and --force contradict each other: give one of them")
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"serialization directory {directory}: it is a file")
    if directory.is_dir():
        with _locked_for_run(directory):
            _restore_replaced(directory)
    remove_leftovers(directory, CONFIG_NAME)  # a run that was killed at its start leaves nothing else
    if not recover:
        advice = "is not empty: --recover goes on with the run in it, --force deletes it"
        check_replaced(directory, force, "serialization directory", advice, "a training run", MARKS)
        return
    if not directory.is_dir() or not any(directory.iterdir()):
        raise ConfigurationError(f"--recover: there is no run in {directory}")
    _check_same_config(directory, config)


@contextmanager
def prepared_directory(directory: Path, recover: bool, force: bool, held: ExitStack) -> Iterator[None]:
    """Creates the directory, locked by `held`, for the construction of a run; an error restores the former state."""
    aside, deleted = _aside(directory)
    is_replacing = force and directory.is_dir() and any(directory.iterdir())
    if is_replacing:
        shutil.rmtree(aside, ignore_errors=True)
        directory.rename(aside)
    directory.mkdir(parents=True, exist_ok=True)
    held.enter_context(_locked_for_run(directory))
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
        aside.rename(deleted)  # at once, so that no kill leaves a part of it that looks whole
        shutil.rmtree(deleted, ignore_errors=True)


def _aside(directory: Path) -> tuple[Path, Path]:
    """Where `--force` puts the former run: until the new one is built, and while it is deleted."""
    return directory.with_name(f".{directory.name}.replaced"), directory.with_name(f".{directory.name}.deleted")


def _restore_replaced(directory: Path) -> None:
    """Restores a run that `--force` had put aside when it was killed, before it trained."""
    aside, deleted = _aside(directory)
    shutil.rmtree(deleted, ignore_errors=True)
    if aside.is_dir() and not (directory / METRICS_NAME).exists() and not any(directory.glob("*.th")):
        shutil.rmtree(directory)
        aside.rename(directory)


def _locked_for_run(directory: Path) -> AbstractContextManager[None]:
    return locked(directory, f"serialization directory {directory}: another process trains in it")


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """Writes `config.json` and `meta.json`; a recovered run keeps its `meta.json`."""
    write_json(directory / CONFIG_NAME, config)
    if not (directory / META_NAME).is_file():
        write_json(directory / META_NAME, {"version": package_version(), "transformers": transformers.__version__})


def _check_same_config(directory: Path, config: dict[str, Any]) -> None:
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise ConfigurationError(f"--recover: {directory} holds no {CONFIG_NAME}")
    saved = json.loads(path.read_text(encoding="utf-8"))
    # Through JSON, as the saved config: tuples become lists.
    differences = diff_configs(saved, json.loads(json.dumps(config)))
    if differences:
        listed = "; ".join(f"{key}: {old!r} -> {new!r}" for key, old, new in differences)
        raise ConfigurationError(f"--recover: the config differs from the one in {directory}: {listed}")
