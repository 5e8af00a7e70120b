from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Comparisons train in this process; the list of the jobs that train."""
    from tests.ablation_in_process import train_in_process

    return train_in_process(monkeypatch)
