"""Sets up the processes that run tests. That of `pytest -n` which hands them out imports no torch and no fixtures."""

from __future__ import annotations

import gc

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.shared_fixtures")


def pytest_collection_finish() -> None:
    """A full garbage collection, as at the end of each training, need not look at a million objects of modules."""
    gc.freeze()
