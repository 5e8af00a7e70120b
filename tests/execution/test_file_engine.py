"""Which engine runs a file."""

from __future__ import annotations

from beem_plugin.execution.file_engine import FILE_ENGINE, file_engine


def test_the_config_wins() -> None:
    assert file_engine({"model": {"type": "multi_exit_classifier"}}) == FILE_ENGINE
    assert file_engine({"model": {"engine": None}}) == FILE_ENGINE
    assert file_engine({"model": {"engine": {"type": "single"}}}) is None
    assert file_engine({"model": {"engine": "single"}}) is None
