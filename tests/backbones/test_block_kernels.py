"""
The kernels say what torch's own operations say. Without a GPU they run in Triton's interpreter:

    TRITON_INTERPRET=1 pytest tests/backbones/test_block_kernels.py
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

from beem_plugin.backbones import block_kernels
from beem_plugin.backbones.packed import Packed
from beem_plugin.common import kernel_launch

from .tiny_models import CONFIGS, build, make_batch, tiny

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def can_run() -> bool:
    return block_kernels.triton is not None and (HERE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


needs_triton = pytest.mark.skipif(not can_run(), reason="needs Triton, and a GPU or TRITON_INTERPRET=1")


@needs_triton
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 16, 17, 50, 128])
@torch.inference_mode()
def test_attention(tokens: int, stacked: bool, with_padding: bool, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(tokens)
    batch, heads, size = 3, 2, 32
    hidden = heads * size
    inputs = 2 * torch.randn(batch, tokens, 3 * hidden, generator=generator).half().to(HERE)
    query, key, value = inputs.chunk(3, dim=2) if stacked else (part.contiguous() for part in inputs.chunk(3, dim=2))
    lengths = torch.tensor([tokens, max(1, tokens // 2), 1])
    real = (torch.arange(tokens) < lengths[:, None]).to(HERE) if with_padding else None
    bias = torch.randn(1, heads, tokens, tokens, generator=generator).half().to(HERE) if with_bias else None
    found = block_kernels.attend(query, key, value, heads, bias, real)

    split = [part.view(batch, tokens, heads, size).transpose(1, 2).double() for part in (query, key, value)]
    mask = torch.zeros(batch, heads, tokens, tokens, dtype=torch.float64, device=HERE)
    if bias is not None:
        mask = mask + bias.double()
    if real is not None:
        mask = mask.masked_fill(~real[:, None, None, :], -1e9)
    expected = functional.scaled_dot_product_attention(*split, attn_mask=mask)
    expected = expected.transpose(1, 2).reshape(batch, tokens, hidden)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.double(), expected, rtol=5e-3, atol=5e-3)


def pack(lengths: list[int]) -> Packed:
    here = torch.tensor(lengths)
    return Packed((here.cumsum(0) - here).to(HERE), here.to(HERE), here.numpy())


@needs_triton
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lengths", [[1], [3, 16], [2, 2, 5, 17, 32, 33, 70]])
@torch.inference_mode()
def test_packed_attention(lengths: list[int], with_bias: bool) -> None:
    packed, (heads, size) = pack(lengths), (2, 16)
    assert [block for _, _, block in packed.groups] == sorted({max(16, 1 << (n - 1).bit_length()) for n in lengths})
    generator = torch.Generator().manual_seed(3)
    inputs = 2 * torch.randn(1, sum(lengths), 3 * heads * size, generator=generator).half().to(HERE)
    query, key, value = inputs.chunk(3, dim=2)
    longest = lengths[-1]
    bias = torch.randn(1, heads, longest, longest, generator=generator).half().to(HERE) if with_bias else None
    found = block_kernels.attend(query, key, value, heads, bias, None, packed)
    start = 0
    for n in lengths:
        own = inputs[:, start : start + n].double()
        split = [part.reshape(1, n, heads, size).transpose(1, 2) for part in own.chunk(3, dim=2)]
        mask = None if bias is None else bias[:, :, :n, :n].double()
        expected = functional.scaled_dot_product_attention(*split, attn_mask=mask).transpose(1, 2).reshape(1, n, -1)
        torch.testing.assert_close(found[:, start : start + n].double(), expected, rtol=5e-3, atol=5e-3)
        start += n


@needs_triton
@pytest.mark.parametrize("family", ["bert", "roberta", "electra-projected", "albert", "albert-groups", "mpnet"])
@torch.inference_mode()
def test_packed_samples(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_kernels, "serves", lambda like, num_heads=None: True)
    backbone = tiny(family).eval().to(HERE)
    lengths = (2, 3, 3, 9, 20)
    batch = {name: value.to(HERE) for name, value in make_batch(backbone, lengths).items()}
    if "token_type_embeddings" in dict(backbone.transformer_model.embeddings.named_children()):
        batch["token_type_ids"] = (torch.arange(20, device=HERE) > 1).long().expand(5, -1)
    real = batch["attention_mask"].bool()
    packed = pack(list(lengths))
    tokens = {name: value.reshape(-1) for name, value in batch.items() if name != "attention_mask"}
    assert backbone.can_pack(20) and not backbone.can_pack(129)
    state = backbone.embed_packed(tokens, torch.arange(0, 100, 20, device=HERE), packed)
    expected = backbone.make_state(backbone.embed_tokens(batch), batch["attention_mask"])
    for number in range(backbone.num_layers + 1):
        if number:
            state, expected = (
                backbone.layer(number, state),
                expected.advance(backbone.block(number, expected)),
            )
        torch.testing.assert_close(state.hidden_states[0], expected.hidden_states[real], rtol=1e-3, atol=1e-3)
        hidden, mask = packed.padded(state.hidden_states)
        assert torch.equal(mask, real) and torch.equal(hidden[real], state.hidden_states[0])
    # A module that somebody listens to is called.
    heard: list[int] = []
    last = backbone.num_layers
    before = backbone.embed_packed(tokens, torch.arange(0, 100, 20, device=HERE), packed)
    without = backbone.layer(last, before).hidden_states
    backbone._direct_blocks[last].mixed.register_forward_hook(lambda *_: heard.append(1))
    torch.testing.assert_close(backbone.layer(last, before).hidden_states, without, rtol=1e-3, atol=1e-3)
    assert heard and not backbone.can_pack(20)


@needs_triton
@pytest.mark.parametrize("size", [48, 768])
@torch.inference_mode()
def test_sum_and_norm(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    norm = torch.nn.LayerNorm(size).half().to(HERE)
    norm.weight.normal_()
    norm.bias.normal_()
    first, second = (torch.randn(2, 5, size, generator=generator).half().to(HERE) for _ in range(2))
    found = block_kernels.add_and_normalise(first, second, norm)
    expected = norm.double()(first.double() + second.double())
    torch.testing.assert_close(found.double(), expected, rtol=5e-3, atol=5e-3)


@needs_triton
@pytest.mark.parametrize("lengths", [(12, 5, 9, 3), (7, 7), (70, 90)])
@pytest.mark.parametrize(
    "family", ["bert", "roberta", "xlm-roberta", "electra", "electra-projected", "albert", "distilbert", "mpnet"]
)
@torch.inference_mode()
def test_embeddings(family: str, lengths: tuple[int, ...]) -> None:
    config = {**CONFIGS[family], "max_position_embeddings": 100}
    if config["model_type"] not in ("distilbert", "mpnet"):
        config["type_vocab_size"] = 2
    backbone = build(config=config).eval().half().to(HERE)
    batch = {name: value.to(HERE) for name, value in make_batch(backbone, lengths).items()}
    batch["input_ids"][0, 2] = backbone.config.pad_token_id or 0  # a padding token that is none
    if "type_vocab_size" in config:
        batch["token_type_ids"] = (torch.arange(max(lengths), device=HERE) > 2).long().expand(len(lengths), -1)
    direct = backbone.direct_embeddings()
    assert direct is not None
    for kinds in (batch.pop("token_type_ids", None), None):
        found = backbone.after_embeddings(direct.compute(batch["input_ids"], kinds))
        more = {} if kinds is None else {"token_type_ids": kinds}
        expected = backbone.embed_tokens({**batch, **more})
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-3)
        assert found.shape == expected.shape and float(expected.abs().max()) > 0.1


def test_other_embeddings_are_called() -> None:
    for family in ("deberta-v2", "modernbert"):
        assert build(config=CONFIGS[family]).direct_embeddings() is None
    backbone = build(config=CONFIGS["bert"])
    backbone.transformer_model.embeddings.word_embeddings = torch.nn.Embedding(60, 32, max_norm=1.0)
    assert backbone.direct_embeddings() is None
    backbone = build(config=CONFIGS["bert"])
    backbone.transformer_model.embeddings.more = torch.nn.Tanh()
    assert backbone.direct_embeddings() is None


@needs_triton
@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("lengths", [(12, 5, 9, 3), (7, 7)])
@torch.inference_mode()
def test_a_block(family: str, lengths: tuple[int, ...]) -> None:
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": family, **shape, "intermediate_size": 48, "max_position_embeddings": 40, "pad_token_id": 1}
    torch.manual_seed(4)
    backbone = build(config=config).eval().half().to(HERE)
    batch = {name: value.to(HERE) for name, value in make_batch(backbone, lengths).items()}
    state = backbone.embed(batch)
    for number in (1, 2):
        direct = backbone.direct_block(number)
        assert direct is not None
        padded = "key_mask" in state.batched
        said = direct.with_kernels(
            state.hidden_states, backbone.direct_bias(state), state.attention_mask if padded else None
        )
        expected = backbone.block(number, state)
        assert direct.agrees(("kernels",), said, expected, state.attention_mask)
        state = state.advance(expected)


@pytest.mark.skipif(HERE.type != "cuda" or not can_run(), reason="needs a GPU")
@torch.inference_mode()
def test_a_backbone_uses_them() -> None:
    shape = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "mpnet", **shape, "intermediate_size": 96, "max_position_embeddings": 200}
    backbone = build(config=config).eval().half().to(HERE)
    state = backbone.embed({name: value.to(HERE) for name, value in make_batch(backbone, (9, 5)).items()})
    backbone.layer(1, state)
    assert [kind[0] for kind in backbone._direct_blocks[1].agreed] == ["with kernels"]
    assert len(backbone._direct_embeddings.agreed) == 1


@pytest.mark.skipif(HERE.type != "cuda" or not can_run(), reason="needs a GPU")
def test_launching_again_does_the_same() -> None:
    for size in (768, 1024):
        norm = torch.nn.LayerNorm(size).half().to(HERE)
        for rows in (1, 5, 16, 48):
            first, second = (torch.randn(rows, 1, size, device=HERE).half() for _ in range(2))
            said = [block_kernels.add_and_normalise(first, second, norm) for _ in range(3)]
            assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])
            torch.testing.assert_close(said[0], norm(first + second), rtol=1e-2, atol=1e-2)
    assert any(compiled for compiled in kernel_launch._compiled.values()), "no launch was shortened"


def test_stacked_weights_follow_their_parts() -> None:
    backbone = build(config={"model_type": "bert", "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1,
                             "num_attention_heads": 2, "intermediate_size": 48}).eval()  # fmt: skip
    direct = backbone.direct_block(1)
    assert direct is not None
    weight, bias = direct.weights
    assert weight.shape == (96, 32) and bias.shape == (96,) and direct.weights[0] is weight
    with torch.no_grad():
        direct.key.weight.mul_(2)
    assert torch.equal(direct.weights[0][32:64], direct.key.weight) and direct.weights[0] is not weight
    with torch.no_grad():
        direct.value.bias.add_(1)
    assert torch.equal(direct.weights[1][64:], direct.value.bias)
    backbone.double()
    assert direct.weights[0].dtype == torch.float64
