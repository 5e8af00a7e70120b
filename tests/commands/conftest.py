from __future__ import annotations

import pytest


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Ablations train in this process; the list of the commands they run."""
    from tests.ablation_in_process import train_in_process

    return train_in_process(monkeypatch)
