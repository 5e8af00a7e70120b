"""Which engine runs a file."""

from __future__ import annotations

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.engine import FILE_ENGINE, check_engine, unless_given


def test_the_config_wins() -> None:
    assert unless_given(FILE_ENGINE, {"model": {"type": "multi_exit_classifier"}}) == FILE_ENGINE
    assert unless_given(FILE_ENGINE, {"model": {"engine": None}}) == FILE_ENGINE
    assert unless_given(FILE_ENGINE, {"model": {"engine": {"type": "single"}}}) is None
    assert unless_given(FILE_ENGINE, {"model": {"engine": "single"}}) is None


def test_an_unknown_engine_is_named_by_its_flag() -> None:
    check_engine("single", "--engine")
    with pytest.raises(ConfigurationError, match="--engine: found 'singel', allowed: single"):
        check_engine("singel", "--engine")
