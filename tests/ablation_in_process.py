"""Comparisons whose trainings run in this process: a new process for each costs seconds."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from beem_plugin.common.errors import BeemError
from beem_plugin.common.logging import close_logging
from beem_plugin.comparison.trainings.launcher import Job, Launcher


def train_in_process(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Lets a `Launcher` run its jobs here; those that train are gathered in the list."""
    trained: list[Job] = []

    def execute(self: Launcher, job: Job, log_path: Path) -> int:
        trained.extend([] if job.run.is_finished else [job])
        with open(log_path, "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                job()
            except BeemError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            finally:
                close_logging()
        return 0

    monkeypatch.setattr(Launcher, "execute", execute)
    return trained
