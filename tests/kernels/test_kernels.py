"""Every kernel equals its torch reference: on a GPU compiled, elsewhere in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from beem_plugin.kernels.add_norm import add_norm, add_norm_reference
from beem_plugin.kernels.attention import attention, attention_reference, length_groups
from beem_plugin.kernels.mean_tokens import mean_tokens, mean_tokens_reference
from beem_plugin.kernels.packed import Packed

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Triton's interpreter multiplies the bits of bfloat16 matrices.
DOT_DTYPES = DTYPES if DEVICE.type == "cuda" else DTYPES[:2]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
LENGTHS = np.array([1, 3, 16, 17, 33])


def random(*shape: int, seed: int = 0) -> Tensor:
    """Float64 on the device, so that references are exact."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def right_padding(*lengths: int) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(DEVICE)


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DOT_DTYPES)
@pytest.mark.parametrize("tokens", [1, 17, 50, 128])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biases", [0, 1, 3])
@torch.inference_mode()
def test_attention_of_padded_samples(dtype: torch.dtype, tokens: int, padded: bool, biases: int) -> None:
    heads, hidden = 2, 64
    joined = (2 * random(3, tokens, 3 * hidden, seed=tokens)).to(dtype)
    # A corner of a larger table, as position biases are.
    bias = random(biases, heads, tokens + 3, tokens + 3).to(dtype)[:, :, :tokens, :tokens] if biases else None
    mask = right_padding(tokens, tokens // 2 + 1, 1) if padded else None
    exact = None if bias is None else bias.double()
    expected = attention_reference(*joined.double().chunk(3, dim=2), heads, exact, mask)
    assert_close(attention(*joined.chunk(3, dim=2), heads, bias, mask), expected, dtype)


@torch.inference_mode()
def test_attention_of_a_sample_of_padding_alone_is_finite() -> None:
    query, key, value = random(3, 2, 9, 32).float()
    mask = torch.ones(2, 9, dtype=torch.bool, device=DEVICE)
    mask[1] = False
    found = attention(query, key, value, 2, attention_mask=mask)
    assert found.isfinite().all()
    torch.testing.assert_close(found[0], attention_reference(query, key, value, 2)[0])


@pytest.mark.parametrize("dtype", DOT_DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@torch.inference_mode()
def test_attention_of_packed_samples(dtype: torch.dtype, with_bias: bool) -> None:
    packed, heads, size = Packed.of(LENGTHS, DEVICE), 2, 16
    joined = (2 * random(1, packed.tokens, 3 * heads * size)).to(dtype)
    bias = random(1, heads, 33, 33).to(dtype) if with_bias else None
    exact = None if bias is None else bias.double()
    expected = attention_reference(*joined.double().chunk(3, dim=2), heads, exact, packed=packed)
    assert expected.shape == (1, packed.tokens, heads * size)
    assert_close(attention(*joined.chunk(3, dim=2), heads, bias, packed=packed), expected, dtype)


def test_samples_are_grouped_by_the_power_of_two_above_their_length() -> None:
    assert length_groups(np.array([1, 3, 16, 17, 40, 64, 65])) == [(0, 3, 16), (3, 4, 32), (4, 6, 64), (6, 7, 128)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 272])
@pytest.mark.parametrize("shared", [False, True])
@torch.inference_mode()
def test_add_norm(dtype: torch.dtype, size: int, shared: bool) -> None:
    hidden = random(2, 5, size, seed=1).to(dtype)
    residual = random(*((5, size) if shared else (2, 5, size)), seed=2).to(dtype)
    weight, bias = random(size, seed=3).to(dtype), random(size, seed=4).to(dtype)
    expected = add_norm_reference(hidden.double(), residual.double(), weight.double(), bias.double(), 1e-12)
    assert_close(add_norm(hidden, residual, weight, bias, 1e-12), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 272])
@torch.inference_mode()
def test_mean_of_tokens(dtype: torch.dtype, size: int) -> None:
    mask = right_padding(9, 4, 1)
    hidden = random(3, 9, size).to(dtype)
    exact = hidden.double()
    assert_close(mean_tokens(hidden), exact.mean(1), dtype)
    expected = torch.stack([exact[row, :length].mean(0) for row, length in enumerate((9, 4, 1))])
    assert_close(mean_tokens(hidden, mask), expected, dtype)
    assert_close(mean_tokens_reference(hidden, mask), expected, dtype)
    packed = Packed.of(LENGTHS, DEVICE)
    hidden = random(1, packed.tokens, size).to(dtype)
    parts = hidden[0].double().split(LENGTHS.tolist())
    expected = torch.stack([part.mean(0) for part in parts])
    assert_close(mean_tokens(hidden, packed=packed), expected, dtype)
    assert_close(mean_tokens_reference(hidden, packed=packed), expected, dtype)


@torch.inference_mode()
def test_mean_of_a_sample_of_padding_alone_is_zero() -> None:
    hidden, mask = random(2, 3, 16).float(), torch.tensor([[True] * 3, [False] * 3], device=DEVICE)
    for mean in (mean_tokens, mean_tokens_reference):
        assert not mean(hidden, mask)[1].any()
