"""What beams cost is what runs: every beam's blocks and heads, an image's keys and values once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from beem_plugin.decoding import CaptionDecoding, decoded_speed
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.skipped_blocks import Copy, Propagate, Recompute
from tests.tiny_captioner import captioner, images, policy

RULES: list[dict[str, Any]] = [
    {"type": "final"},
    {"type": "fixed_exit", "exit": 3},
    {"type": "max_probability", "thresholds": 0.5},
    {"type": "beem", "weights": "cost", "thresholds": 0.3},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["type"])
@pytest.mark.parametrize("beams", [2, 4])
def test_counted_macs_are_those_that_run(rule: dict[str, Any], beams: int) -> None:
    model = captioner()
    model.decoding = CaptionDecoding(num_beams=beams, max_length=6)
    for count in (1, 3):
        batch = {"pixel_values": images(count)}
        model.decode(batch)  # counts the image encoder, which runs it
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            decoded = model.decode(batch, policy=policy(**rule))
        # Rows of a batch that lack fewer words than others are padded, which does not count.
        counted, ran = decoded.macs.total, counter.get_total_flops() / 2
        assert counted == pytest.approx(ran, rel=1e-9 if rule["type"] in ("final", "fixed_exit") else 0.05)
        assert counted <= ran * (1 + 1e-9)


def test_no_speed_up_is_claimed_where_lengths_cannot_be_matched() -> None:
    """A beam search's cost is not that of its best caption at full depth: only two searches can be compared."""
    model = captioner()
    model.decoding = CaptionDecoding(num_beams=3, max_length=10)
    decoded = model.decode({"pixel_values": images(2)}, policy=policy(type="fixed_exit", exit=3))
    found = decoded_speed(model.decoder, [decoded])
    assert "mac_speedup" not in found and found["layer_speedup"] == 2.0 and found["gmacs"]["blocks"] > 0


def test_skipped_blocks_that_are_filled_in_cost_what_each_token_needs() -> None:
    decoder: Any = SimpleNamespace(hidden_size=8, config=SimpleNamespace(n_inner=None))
    missing = np.array([[2, 0, 1], [1, 1, 0]])  # blocks of the tokens at positions 0, 1 and 2 of two captions

    def block(keys: int) -> int:
        """Four matrices for the caption, two for an image of 5 patches, a feed-forward of 4 x 8, two attentions."""
        return 6 * 8 * 8 + 2 * 8 * 32 + 2 * keys * 8 + 2 * 5 * 8

    computed, projected, copied = CaptionMacs(), CaptionMacs(), CaptionMacs()
    Recompute().count(missing, decoder, 5, computed)
    Propagate().count(missing, decoder, 5, projected)
    Copy().count(missing, decoder, 5, copied)
    assert computed == CaptionMacs(blocks=3 * block(1) + block(2) + block(3))
    assert projected == CaptionMacs(skipped=5 * 2 * 8 * 8) and copied == CaptionMacs()
