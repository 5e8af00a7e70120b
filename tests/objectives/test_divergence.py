from __future__ import annotations

import numpy as np
import pytest
import torch

from beem_plugin.objectives.exit_loss import kl_divergence, pairwise_cross_entropy, pairwise_kl
from tests.objectives.by_hand import kl, random_logits, softmax


def test_pairs_by_hand() -> None:
    first, second = random_logits(seed=1), random_logits(seed=2)
    log_p, log_q = first.log_softmax(-1), second.log_softmax(-1)
    divergence, cross_entropy = pairwise_kl(log_p, log_q), pairwise_cross_entropy(log_p, log_q)
    for s in range(5):
        for i in range(4):
            for j in range(4):
                p, q = softmax(first[s, j].numpy()), softmax(second[s, i].numpy())
                assert float(divergence[s, i, j]) == pytest.approx(kl(p, q), rel=1e-4, abs=1e-6)
                assert float(cross_entropy[s, i, j]) == pytest.approx(-(p * np.log(q)).sum(), rel=1e-4)
                assert float(kl_divergence(log_p[s, j], log_q[s, i])) == pytest.approx(kl(p, q), rel=1e-4, abs=1e-6)


def test_pairs_stay_in_float32_under_mixed_precision() -> None:
    log_p = random_logits().log_softmax(-1)
    plain = pairwise_kl(log_p, log_p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pairwise_kl(log_p, log_p), plain)
    assert plain.dtype == torch.float32
    assert torch.allclose(plain.diagonal(dim1=1, dim2=2), torch.zeros(5, 4), atol=1e-6)
