"""Ablations whose trainings run in this process: a new process for each costs seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from beem_plugin.comparison.trainings.runs import Launcher
from tests.tiny_project import run


def train_in_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Lets a `Launcher` run its commands here; they are gathered in the list."""
    commands: list[list[str]] = []

    def execute(self: Launcher, command: Sequence[str], log_path: Path) -> int:
        commands.append(list(command))
        result = run(*command, check=False)
        with open(log_path, "a") as log:
            log.write(result.stdout + result.stderr)
        return result.returncode

    monkeypatch.setattr(Launcher, "execute", execute)
    return commands
