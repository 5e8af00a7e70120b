"""Sets up the processes that run tests. That of `pytest -n` which hands them out imports no torch and no fixtures."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import pytest

gc.disable()  # until the tests are collected
fixtures = None
if "PYTEST_XDIST_WORKER" in os.environ or "-n" not in sys.argv:
    # First: a conftest below this one imports kernels, which ask how to run.
    fixtures = importlib.import_module("tests.shared_fixtures")
    importlib.import_module("tests.forked").start_server()


def pytest_configure(config: pytest.Config) -> None:
    if fixtures is not None:
        config.pluginmanager.register(fixtures)


def pytest_collection_finish() -> None:
    """A full garbage collection, as at the end of each training, need not look at a million objects of modules."""
    gc.freeze()
    gc.enable()
