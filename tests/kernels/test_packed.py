"""Packing, its inverse, and taking samples out of a packed batch."""

from __future__ import annotations

import numpy as np
import torch

from beem_plugin.kernels.packed import Packed

LENGTHS = np.array([1, 2, 2, 4])
CPU = torch.device("cpu")


def test_layout() -> None:
    packed = Packed.of(LENGTHS, CPU)
    assert (len(packed), packed.tokens, packed.longest) == (4, 9, 4)
    assert packed.cu_seqlens.tolist() == [0, 1, 3, 5, 9]
    assert packed.starts.tolist() == [0, 1, 3, 5]
    assert packed.sample_of_token.tolist() == [0, 1, 1, 2, 2, 3, 3, 3, 3]
    assert packed.positions.tolist() == [0, 0, 1, 0, 1, 0, 1, 2, 3]


def test_samples_are_packed_from_other_tensors_by_index_select() -> None:
    packed = Packed.of(LENGTHS, CPU)
    hidden = torch.randn(1, 9, 3)
    # The second and the last sample.
    kept = Packed.of(LENGTHS[[1, 3]], CPU)
    taken = hidden.index_select(1, kept.indices(packed.starts[[1, 3]]))
    assert torch.equal(taken, torch.cat([hidden[:, 1:3], hidden[:, 5:9]], dim=1))


def test_padded_is_the_inverse_of_packing() -> None:
    packed = Packed.of(LENGTHS, CPU)
    hidden = torch.randn(1, 9, 3)
    padded, mask = packed.padded(hidden)
    assert padded.shape == (4, 4, 3)
    assert mask.sum(1).tolist() == LENGTHS.tolist()
    assert torch.equal(padded[mask][None], hidden)
