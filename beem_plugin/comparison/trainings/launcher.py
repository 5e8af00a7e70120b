"""Runs trainings, each in a process of its own, several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from queue import Queue

import beem_plugin
from beem_plugin.common.errors import BeemError
from beem_plugin.common.files import write_json
from beem_plugin.comparison.trainings.runs import TrainingRun

REPORT_SECONDS = 30
PATIENCE_SECONDS = 60  # how long a training that is asked to end has for archiving its best epoch


class Launcher:
    """
    Starts trainings, each with `--include-package` for all `include_packages`, and on one of `devices`, numbers of GPUs
    that may repeat, where there are any.
    """

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
        or `None`; meanwhile `report` gets a line on the running ones every half minute. When it is left early, the
        trainings are ended as Ctrl-C would.
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
