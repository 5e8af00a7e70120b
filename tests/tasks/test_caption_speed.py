from __future__ import annotations

import pytest

from beem_plugin.tasks.caption_speed import FULL_DEPTH, TRANSFORMERS, caption_speed
from tests.tiny_captioner import captioner, images, policy


def test_every_case_says_what_its_numbers_are() -> None:
    model = captioner(decoding={"max_length": 8})
    policies = {"half": policy(type="fixed_exit", exit=3), "never": policy(type="patience", patience=6)}
    batches = [{"pixel_values": images(3)}, {"pixel_values": images(2)}]
    rows = {row["name"]: row for row in caption_speed(model, batches, policies, ("propagate", "recompute"), repeats=1)}
    assert list(rows) == [
        FULL_DEPTH,
        TRANSFORMERS,
        "half, propagate",
        "half, recompute",
        "never, propagate",
        "never, recompute",
    ]
    assert rows[FULL_DEPTH]["measured_speedup"] == rows[FULL_DEPTH]["mac_speedup"] == 1.0
    assert rows["half, propagate"]["layer_speedup"] == pytest.approx(2.0)
    assert rows["half, propagate"]["mac_speedup"] < rows["half, propagate"]["decoder_mac_speedup"]
    assert rows["never, recompute"]["same_as_full_depth"] == 1.0
    # Heads at every exit, and nobody leaves: slower than full depth, and said so.
    assert rows["never, recompute"]["layer_speedup"] == 1.0 and rows["never, recompute"]["mac_speedup"] < 1
    assert all(row["seconds"] > 0 for row in rows.values())
