"""One training with one seed: its folder, whether it is done; and processes that run several at a time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import beem_plugin
from beem_plugin.common.archive_files import ARCHIVE_NAME, CONFIG_NAME
from beem_plugin.common.errors import BeemError, ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.params import diff_configs
from beem_plugin.comparison.trainings.variants import Variant

SEEDS = {"random_seed": 13370, "numpy_seed": 1337, "pytorch_seed": 133}
REPORT_SECONDS = 30
PATIENCE_SECONDS = 60  # how long a training that is asked to end has for archiving its best epoch


@dataclass
class Training:
    """
    What some variants share: everything but exit policy, calibration and engine. `key` is a hash of the config;
    `directory`, `NAME-KEY`, is named after the first variant. A distilled config names its `teacher` by its key.
    """

    key: str
    directory: Path
    config: dict[str, Any]
    variants: list[Variant] = field(default_factory=list)
    teacher: Training | None = None


@dataclass(frozen=True)
class TrainingRun:
    """
    A training with one seed, from 1. Beside its `seed_K` lie `seed_K.log` and `seed_K.json`, which is there once it has
    ended well: an interrupted run has an archive, too.
    """

    training: Training
    seed: int

    @property
    def needs(self) -> TrainingRun | None:
        """The teacher's run with the same seed."""
        return None if self.training.teacher is None else TrainingRun(self.training.teacher, self.seed)

    @property
    def config(self) -> dict[str, Any]:
        found = seeded(self.training.config, self.seed)
        if self.needs is not None:
            objective = found["model"]["objective"] | {"teacher": str(self.needs.archive_path)}
            found["model"] = {**found["model"], "objective": objective}
        return found

    @property
    def serialization_dir(self) -> Path:
        return self.training.directory / f"seed_{self.seed}"

    @property
    def archive_path(self) -> Path:
        return self.serialization_dir / ARCHIVE_NAME

    @property
    def record_path(self) -> Path:
        return self.serialization_dir.with_suffix(".json")

    @property
    def record(self) -> dict[str, Any]:
        """`wall_seconds` of a run that has ended well, and what else was found out about it."""
        return dict(json.loads(self.record_path.read_text("utf-8")))

    @property
    def log_path(self) -> Path:
        return self.serialization_dir.with_suffix(".log")

    def __str__(self) -> str:
        return f"{self.training.directory.name}, seed {self.seed}"

    @property
    def progress(self) -> str:
        """`base-1a2b, seed 1: 2 of 5 epochs`."""
        epochs = len(list(self.serialization_dir.glob("**/metrics_epoch_*.json")))
        return f"{self}: {epochs} of {epochs_of(self.config)} epochs"

    @property
    def is_begun(self) -> bool:
        return (self.serialization_dir / CONFIG_NAME).is_file()

    @property
    def is_finished(self) -> bool:
        return self.record_path.is_file() and self.archive_path.is_file()

    def check_config(self) -> None:
        """Raises a `ConfigurationError` that names the keys if the run in the directory had another config."""
        if self.is_begun:
            before = json.loads((self.serialization_dir / CONFIG_NAME).read_text("utf-8"))
            check_same(f"the training in {self.serialization_dir}", before, self.config)


def epochs_of(config: dict[str, Any]) -> int:
    """Epochs of a training, those of all its stages together."""
    trainer = config.get("trainer") or {}
    own = trainer.get("num_epochs") or 20
    return sum(stage.get("num_epochs") or own for stage in trainer.get("stages") or [{}])


def seeded(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """Seed 1 is the config's own, or AllenNLP's; each further one adds 1 to all three."""
    own = {name: default if config.get(name) is None else config[name] for name, default in SEEDS.items()}
    return {**config, **{name: value + seed - 1 for name, value in own.items()}}


def hash_of(content: dict[str, Any], digits: int = 10) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def file_name(text: str) -> str:
    """`text` as a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.-")[:60] or "variant"


def check_same(what: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    found = diff_configs(old, new)
    if found:
        listed = "; ".join(f"{key}: {before!r} -> {after!r}" for key, before, after in found)
        raise ConfigurationError(
            f"{what} was trained with another config: {listed}; give the variant another name, use another directory, "
            "or --force, which deletes all that is done"
        )


class Launcher:
    """Starts trainings with all `include_packages`, each on one of `devices`, numbers of GPUs that may repeat."""

    def __init__(self, include_packages: Sequence[str] = (), devices: Sequence[str] = ()) -> None:
        self.include_packages = list(include_packages)
        self._devices: Queue[str] | None = Queue() if devices else None
        for device in devices:
            self._devices.put(device)  # type: ignore[union-attr]
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def run(
        self, runs: Sequence[TrainingRun], jobs: int = 1, report: Callable[[str], None] = print
    ) -> Iterator[tuple[TrainingRun, str | None]]:
        """
        Trains what is not finished; an interrupted run goes on. Gives each run as it ends, with its error in one line
        or `None`; `report` gets a line on the running ones every half minute. Left early, it ends them as Ctrl-C does.
        """
        with ThreadPoolExecutor(max(jobs, 1)) as pool:
            futures = {pool.submit(self.train, run): run for run in runs}
            try:
                pending = set(futures)
                while pending:
                    done, pending = wait(pending, REPORT_SECONDS, FIRST_COMPLETED)
                    yield from ((futures[future], future.result()) for future in done)
                    if not done:
                        report("; ".join(futures[future].progress for future in pending if future.running()))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def train(self, run: TrainingRun) -> str | None:
        """Trains unless that is done; the error in one line, or `None`."""
        try:
            run.check_config()
        except BeemError as error:
            return str(error)
        if run.is_finished:
            return None
        if run.needs is not None and not run.needs.is_finished:
            return f"{run.needs}, its teacher, is not trained"
        # Beside the serialization directory, which must be empty when training begins.
        config_path = run.serialization_dir.with_suffix(".config.json")
        write_json(config_path, run.config)
        command = ["train", str(config_path), "-s", str(run.serialization_dir), "--file-friendly-logging"]
        command += ["--recover"] if run.is_begun else []
        for name in self.include_packages:
            command += ["--include-package", name]
        started = time.time()
        before = run.log_path.stat().st_size if run.log_path.exists() else 0
        status = self.execute(command, run.log_path)
        if status:
            return f"{error_line(run.log_path, before)} (exit status {status}, {run.log_path})"
        write_json(run.record_path, {"wall_seconds": time.time() - started})
        return None

    def execute(self, command: Sequence[str], log_path: Path) -> int:
        """Runs one of our commands with its output in a file; the exit status."""
        # So that the package is found, too, where it is used from a checkout and not installed.
        root = str(Path(beem_plugin.__file__).resolve().parent.parent)
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self._devices is None:
            return self._execute(command, log_path, environment)
        device = self._devices.get()
        try:
            return self._execute(command, log_path, {**environment, "CUDA_VISIBLE_DEVICES": device})
        finally:
            self._devices.put(device)

    def _execute(self, command: Sequence[str], log_path: Path, environment: dict[str, str]) -> int:
        program = [sys.executable, "-m", "beem_plugin", *command]
        with open(log_path, "ab") as log:
            with self._lock:
                if self._is_stopping:
                    return 130
                process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
                self._processes.add(process)
            status = process.wait()
        self._processes.discard(process)
        return status

    def stop(self) -> None:
        """Asks all trainings to end, and waits until they have."""
        with self._lock:
            self._is_stopping = True
            processes = list(self._processes)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def error_line(log_path: Path, start: int = 0) -> str:
    """The last line of a log, from byte `start` on, that begins with "error:", or else its last line."""
    text = log_path.read_bytes()[start:].decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["no output"])[-1].removeprefix("error: ")
