"""Which engine runs a file."""

from __future__ import annotations

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.engine import FILE_ENGINE, check_engine, engine_block


def test_the_config_wins() -> None:
    assert engine_block({"model": {"type": "multi_exit_classifier"}}, FILE_ENGINE) == FILE_ENGINE
    assert engine_block({"model": {"engine": None}}, FILE_ENGINE) == FILE_ENGINE
    given = {"type": "single", "length_bucket": 8}
    assert engine_block({"model": {"engine": given}}, FILE_ENGINE) == given
    assert engine_block({"model": {"engine": "single"}}, FILE_ENGINE) == {"type": "single"}


def test_an_unknown_engine_is_named_by_its_flag() -> None:
    check_engine("single", "--engine")
    with pytest.raises(ConfigurationError, match="--engine: found 'singel', allowed: single"):
        check_engine("singel", "--engine")
