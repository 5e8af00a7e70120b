"""Fixtures that go through every row of the tiny models."""

from __future__ import annotations

import pytest

from beem_plugin.backbones import TransformerBackbone

from .tiny_models import CONFIGS, tiny


@pytest.fixture(params=list(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    """Every row of `CONFIGS` in turn."""
    return request.param


@pytest.fixture
def backbone(name: str) -> TransformerBackbone:
    """The tiny model of the row, in evaluation mode."""
    return tiny(name).eval()
