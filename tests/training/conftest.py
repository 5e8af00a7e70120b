from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.training import tiny_components  # noqa: F401  registers the tiny reader, model and callbacks


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the processes that the tests start: sums in another order would differ in the last digit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
