"""Processes that train, several at a time, each on a device of its own, and keep what judging takes."""

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import beem_plugin
from beem_plugin.common.errors import BeemError
from beem_plugin.common.files import write_json
from beem_plugin.common.params import load_config
from beem_plugin.comparison.trainings.runs import TrainingRun
from beem_plugin.training.train import train_model

REPORT_SECONDS = 30
PATIENCE_SECONDS = 60  # how long a training that is asked to end has for archiving its best epoch
NOT_STARTED = "not started: the time is over"
Steps = Callable[[TrainingRun], list[Callable[[], Any]]]
"""
Of a finished run, what makes the files that judging reads and that are not there yet. A function of a module, or a
`partial` of one: the training's process calls it, so that the process that compares only reads files.
"""


def no_steps(run: TrainingRun) -> list[Callable[[], Any]]:
    return []


@dataclass(frozen=True)
class Job:
    """What one process does: trains a run unless that is done, then takes the steps that `steps` gives."""

    run: TrainingRun
    steps: Steps
    started: float  # seconds since the epoch

    def __call__(self) -> None:
        if not self.run.is_finished:
            # Beside the serialization directory, which must be empty when training begins.
            config_path = self.run.serialization_dir.with_suffix(".config.json")
            write_json(config_path, self.run.config)
            options = {"recover": self.run.is_begun, "file_friendly_logging": True, "return_model": False}
            train_model(load_config(config_path), self.run.serialization_dir, **options)
            write_json(self.run.record_path, {"wall_seconds": time.time() - self.started})
        for step in self.steps(self.run):
            try:
                step()
            except Exception:  # the same step fails where its result is read, and is reported there
                traceback.print_exc()


class Launcher:
    """
    Starts `jobs` trainings at a time with all `include_packages`, or one on each of `devices`, numbers of GPUs that may
    repeat; none after the time `until`, in seconds since the epoch.
    """

    def __init__(
        self,
        jobs: int = 1,
        include_packages: Sequence[str] = (),
        devices: Sequence[str] = (),
        until: float = float("inf"),
    ) -> None:
        self.jobs = len(devices) or max(jobs, 1)
        self.include_packages = list(include_packages)
        self.until = until
        self._free: Queue[dict[str, str]] = Queue()  # what the environment of each job's process names
        for device in devices:
            self._free.put({"CUDA_VISIBLE_DEVICES": device})
        for _ in range(self.jobs - len(devices)):
            self._free.put({})
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def run(
        self, runs: Sequence[TrainingRun], steps: Steps = no_steps, report: Callable[[str], None] = print
    ) -> Iterator[tuple[TrainingRun, str | None]]:
        """
        Trains what is not finished, each run after its teacher, and takes the `steps` of each; an interrupted run goes
        on. Gives each run as it ends, with its error in one line or `None`; `report` gets a line on the running ones
        every half minute. Left early, it ends them as Ctrl-C does.
        """
        waiting, running = list(runs), dict[Future[str | None], TrainingRun]()
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or running:
                    pending = {run.serialization_dir for run in (*waiting, *running.values())}
                    ready = [run for run in waiting if run.needs is None or run.needs.serialization_dir not in pending]
                    for run in ready[: self.jobs - len(running)]:
                        waiting.remove(run)
                        running[pool.submit(self.train, run, steps)] = run
                    done, _ = wait(running, REPORT_SECONDS, FIRST_COMPLETED)
                    yield from [(running.pop(future), future.result()) for future in done]
                    if not done:
                        report("; ".join(run.progress for run in running.values()))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def train(self, run: TrainingRun, steps: Steps = no_steps) -> str | None:
        """Trains unless that is done, and takes the steps; the training's error in one line, or `None`."""
        try:
            run.check_config()
            if run.is_finished and not steps(run):
                return None
        except BeemError as error:
            return str(error)
        if not run.is_finished and run.needs is not None and not run.needs.is_finished:
            return f"{run.needs}, its teacher, is not trained"
        if time.time() > self.until:
            return None if run.is_finished else NOT_STARTED
        before = run.log_path.stat().st_size if run.log_path.exists() else 0
        status = self.execute(Job(run, steps, time.time()), run.log_path)
        if not status or run.is_finished:
            return None
        return f"{error_line(run.log_path, before)} (exit status {status}, {run.log_path})"

    def execute(self, job: Job, log_path: Path) -> int:
        """Runs a job in a process with its output in a file; the exit status."""
        # So that the package is found, too, where it is used from a checkout and not installed.
        root = str(Path(beem_plugin.__file__).resolve().parent.parent)
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        place = self._free.get()
        try:
            return self._execute(job, log_path, {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **place})
        finally:
            self._free.put(place)

    def _execute(self, job: Job, log_path: Path, environment: dict[str, str]) -> int:
        program = [sys.executable, "-m", "beem_plugin.training_process", "--file-friendly-logging"]
        for name in self.include_packages:
            program += ["--include-package", name]
        with open(log_path, "ab") as log:
            with self._lock:
                if self._is_stopping:
                    return 130
                process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
                self._processes.add(process)
            process.communicate(pickle.dumps(job))
        self._processes.discard(process)
        return process.returncode

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
