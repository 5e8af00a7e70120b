"""Each kernel against its reference in torch: in Triton's interpreter without a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.decoding.mixed_depths import advance, attention, linear, lists, summary
from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.decoding.mixed_depths.weights import Linear, folded, shared_vocabulary

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH, WORDS, SIZE = 6, 50, 32


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def layer_norm(size: int) -> torch.nn.LayerNorm:
    norm = torch.nn.LayerNorm(size, eps=1e-3).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return norm


def states(
    dtype: torch.dtype = torch.float32, groups: int = 1, size: int = SIZE
) -> tuple[DecodingState, DecodingState]:
    """
    Five captions of up to six tokens, of which one has ended, in four blocks, the second and fourth with an exit: twice
    the same, for the kernel and for the reference.
    """
    config = GPT2Config(n_embd=size, n_layer=4, n_head=4, vocab_size=WORDS, n_positions=LENGTH)
    model, generator = GPT2LMHeadModel(config), torch.Generator().manual_seed(size)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    for parameter in model.parameters():
        parameter.copy_(normal(*parameter.shape) / parameter.shape[0] ** 0.5)
    heads = [SimpleNamespace(norm=layer_norm(size).to(DEVICE, dtype)) for _ in range(2)]
    matrices = [normal(WORDS, size) / size**0.5 for _ in range(groups)]
    network = SimpleNamespace(
        backbone=SimpleNamespace(decoder=Gpt2Decoder(model.to(DEVICE, dtype))),
        exits=heads,
        num_exits=2,
        exit_weight=lambda number: matrices[min(number, groups) - 1],
    )
    state = DecodingState(network, 5, LENGTH, 0, True)
    images = torch.zeros(4, 5, 4, 3, size // 4, device=DEVICE, dtype=dtype)  # of three patches each
    state.image_keys, state.image_values = images, images.clone()
    state.layers.copy_(torch.tensor([1, 3, -1, 1, 0]))
    state.positions.copy_(torch.tensor([3, 2, 5, 0, 4]))
    state.at_exit.copy_(torch.tensor([1, 2, 0, 1, 0]))
    state.filled.copy_(
        torch.tensor([[1, 4, 1, 1, 0, 0], [3, 4, 3, 0, 0, 0], [9] * 6, [1] + [0] * 5, [2, 1, 1, 1, 0, 0]])
    )
    for name in ("hidden", "keys", "values", "image_keys", "image_values", "query", "inner", "logits"):
        buffer = getattr(state, name)
        buffer.copy_(normal(*buffer.shape))
    state.hidden += 20  # far from 0, as a decoder's states may be
    other = copy.deepcopy(state)
    other.use_kernels = False
    return state, other


EXITS = torch.tensor([0, 1, 0, 2], dtype=torch.int32, device=DEVICE)


def same(state: DecodingState, other: DecodingState, dtype: torch.dtype = torch.float32) -> None:
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    for name, value in vars(state).items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, getattr(other, name), **tolerance, msg=name)


def both(
    work: Callable[[DecodingState], Any], dtype: torch.dtype = torch.float32, skips: bool = True, **keys: Any
) -> DecodingState:
    """Runs `work` by kernels and by references, after the lists of tokens; the kernels' state."""
    state, other = states(dtype, **keys)
    for one in (state, other):
        lists.list_tokens(one, 5, True, skips, skips)
        work(one)
    same(state, other, dtype)
    return state


def test_lists_name_the_current_tokens_and_those_that_skipped_a_block() -> None:
    state = both(lambda one: lists.list_heads(one, 5, one.at_exit))
    found = [row[:count].tolist() for row, count in zip(state.listed, state.counts[:, 1].tolist(), strict=True)]
    assert found == [[4 * 6 + 4], [3, 18, 0, 2], [], [8, 6]]
    assert state.counts[:, 0].tolist() == [1, 2, 0, 1]
    assert state.head_places[0, :3].tolist() == [3, 8, 18] and state.head_counts[0, 0] == 3
    filled = [[2, 4, 2, 2, 0, 0], [4, 4, 4, 0, 0, 0], [9] * 6, [2] + [0] * 5, [2, 1, 1, 1, 1, 0]]
    assert state.filled.tolist() == filled
    assert state.recomputed.view(-1).nonzero().flatten().tolist() == sorted([28, 3, 18, 0, 2, 8, 6])
    state = both(lambda one: lists.list_heads(one, 5, one.at_exit), groups=2)
    assert state.head_places[0, :2].tolist() == [3, 18] and state.head_places[1, 0] == 8
    assert state.head_counts[:, 0].tolist() == [2, 1]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 200), (torch.float16, 32)])
@pytest.mark.parametrize("kind", ["store", "add", "gelu", "keys_values"])
def test_each_token_is_multiplied_by_the_weights_of_its_block(kind: str, dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(len(kind))
    outputs = 3 * size if kind == "keys_values" else 66
    weight = (torch.randn(4, outputs, size, generator=generator) / size**0.5).to(dtype)
    bias = torch.randn(4, outputs, generator=generator).to(dtype)
    made = [layer_norm(size).to(dtype) for _ in range(4)]
    layer = folded(list(weight), list(bias), made)
    layer = Linear(layer.weight.to(DEVICE), layer.bias.to(DEVICE), True, layer.eps)
    start = torch.randn(30, size if kind == "keys_values" else outputs, generator=generator).to(DEVICE, dtype)
    results: list[Tensor] = []

    def work(one: DecodingState) -> None:
        results.append(start.clone())
        linear.mixed_linear(one, 5, kind, one.hidden, layer, results[-1], kind in ("store", "keys_values"))

    state = both(work, dtype, size=size)
    close = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(*results, **close)
    if kind == "store":
        for block, (_, count) in enumerate(state.counts.tolist()):
            for place in state.listed[block, :count].tolist():
                exact = made[block].double()(state.hidden[place].double().cpu()) @ weight[block].double().t()
                exact += bias[block]
                torch.testing.assert_close(results[0][place].double().cpu(), exact, **close)
                made[block].to(dtype)


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float32, 1), (torch.float32, 2), (torch.float16, 1)])
def test_logits_are_those_of_each_tokens_exit(dtype: torch.dtype, groups: int) -> None:
    def work(one: DecodingState) -> None:
        lists.list_heads(one, 5, one.at_exit)
        linear.mixed_linear(one, 5, "head", one.hidden, one.weights.vocabulary, one.logits)

    both(work, dtype, groups=groups)


def test_large_gains_do_not_overflow_half_precision() -> None:
    state, _ = states(torch.float16)
    generator = torch.Generator().manual_seed(0)
    lists.list_tokens(state, 5, True, True, False)
    lists.list_heads(state, 5, state.at_exit)
    state.hidden.copy_(torch.randn(30, SIZE, generator=generator))
    state.hidden[:, 3] = 3000
    made, words = [layer_norm(SIZE) for _ in range(2)], torch.randn(WORDS, SIZE, generator=generator).half() / 6
    with torch.no_grad():
        made[0].weight[3] = 30
        heads = shared_vocabulary(words, made)
        heads = Linear(**{k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in vars(heads).items()})
        expected = made[0](state.hidden[3].double().cpu()) @ words.double().t()
    linear.mixed_linear(state, 5, "head", state.hidden, heads, state.logits)
    torch.testing.assert_close(state.logits[0].double().cpu(), expected, atol=0.2, rtol=0.02)


def test_a_normalisation_is_folded_into_what_follows_it() -> None:
    generator = torch.Generator().manual_seed(0)
    values = 3 * torch.randn(7, 20, generator=generator).double() + 50
    weight, bias = torch.randn(3, 11, 20).double(), torch.randn(3, 11).double()
    made = [layer_norm(20) for _ in range(3)]
    made[1].weight *= 40
    layer, words = folded(list(weight), list(bias), made), torch.randn(13, 20).double()
    heads = shared_vocabulary(words, made)
    assert heads.gain is not None and heads.slope is not None and heads.boost is not None
    assert heads.gain.abs().max() <= 1 and layer.weight.sum(2).abs().max() < 1e-9
    mean, std = values.mean(1, keepdim=True), (values.var(1, keepdim=True, correction=0) + layer.eps).sqrt()
    for block, norm in enumerate(made):
        expected = norm(values) @ weight[block].t() + bias[block]
        torch.testing.assert_close(
            values @ layer.weight[block].t() / std + layer.bias[block], expected, atol=1e-4, rtol=0
        )
        found = (values * heads.gain[block]) @ heads.weight[0].t() - mean * heads.slope[block]
        found = heads.boost[block] * found / std + heads.bias[block]
        torch.testing.assert_close(found, norm(values) @ words.t(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("recomputes", [True, False])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 48), (torch.float16, 32)])
def test_attention_of_each_tokens_block(images: bool, recomputes: bool, dtype: torch.dtype, size: int) -> None:
    def work(one: DecodingState) -> None:
        attention.mixed_attention(one, 5, images, recomputes, False)

    assert both(work, dtype, size=size).attention_output.any()


def test_keys_and_values_of_a_tokens_last_block_stand_for_those_of_skipped_ones() -> None:
    state = both(lambda one: attention.mixed_attention(one, 5, False, False, True), skips=False)
    # Row 1 is in block 3 (of 0 to 3); its tokens were computed in 3, 4 and now 4 blocks.
    depth = torch.tensor([2, 3, 3])
    keys, values = (buffer[depth, 1, :, torch.arange(3)].transpose(0, 1) for buffer in (state.keys, state.values))
    query = state.query[8].view(4, 1, 8)
    expected = (query @ keys.transpose(1, 2) * state.scales[3]).softmax(-1) @ values
    torch.testing.assert_close(state.attention_output[8], expected.flatten(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("words", [50, 5000])
def test_summaries(words: int) -> None:
    logits = 5 * torch.randn(5, words, generator=torch.Generator().manual_seed(words)).to(DEVICE)
    logits[0, [7, 40, words - 1]] = 30.0  # the first of equal ones is chosen

    def work(one: DecodingState) -> None:
        one.logits = logits.clone()
        summary.summarize(one, 5, one.at_exit)

    state = both(work)
    assert state.token[0] == 7 and state.margin[0] == 0 and state.entropy[1] > 0
    assert state.confidence[[2, 4]].tolist() == [0, 0]  # at no exit
    torch.testing.assert_close(state.log_probability[1], logits[1].log_softmax(-1).max())


def test_tokens_that_exit_are_followed_by_the_next_one() -> None:
    leaves = torch.tensor([True, False, False, False, True], device=DEVICE)

    def work(one: DecodingState) -> None:
        one.token.copy_(torch.tensor([5, 1, 0, 7, 9]))
        advance.advance(one, 5, leaves, EXITS, 1, 2)

    state = both(work)
    # The first row exits, the second ends with EOS at the last exit, the others enter the next block.
    assert state.layers.tolist() == [0, -1, -1, 2, 1] and state.positions.tolist() == [4, 2, 5, 0, 4]
    assert state.at_exit.tolist() == [0, 0, 0, 0, 1]
    assert state.tokens[0, 3] == 5 and state.exits[0, 3] == 1 and state.exits[1, 2] == 2 and state.exits.sum() == 3


@pytest.mark.parametrize("rounds", [True, False])
def test_tf32_is_used_where_torch_allows_it(rounds: bool) -> None:
    matmul = torch.backends.cuda.matmul
    knows_precision = hasattr(matmul, "fp32_precision")
    name, chosen = ("fp32_precision", "tf32" if rounds else "ieee") if knows_precision else ("allow_tf32", rounds)
    before = getattr(matmul, name)
    setattr(matmul, name, chosen)
    try:
        assert linear.allows_tf32() == rounds
    finally:
        setattr(matmul, name, before)
