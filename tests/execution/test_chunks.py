"""How sorted samples are divided into chunks, and repacked."""

from __future__ import annotations

import itertools

import torch

from beem_plugin.backbones import Backbone
from beem_plugin.common.registry import Params
from beem_plugin.execution.chunks import Chunk
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.padded_chunks import PaddedLayout, plan
from beem_plugin.exits.policies import Final
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.execution.worlds import Wanted, World, make_batches


def cost(lengths: list[int], chunks: list[tuple[int, int]], call_tokens: int) -> int:
    return sum((last - first) * lengths[last - 1] + call_tokens for first, last in chunks)


def test_cuts_cost_least() -> None:
    generator = torch.Generator().manual_seed(3)
    for call_tokens in (0, 3, 20):
        lengths = torch.randint(1, 9, (9,), generator=generator).sort().values
        found = plan(lengths, 10**6, call_tokens)
        every = (
            [(a, b) for a, b in itertools.pairwise((0, *cuts, len(lengths)))]
            for number in range(len(lengths))
            for cuts in itertools.combinations(range(1, len(lengths)), number)
        )
        sizes = lengths.tolist()
        assert cost(sizes, found, call_tokens) == min(cost(sizes, chunks, call_tokens) for chunks in every)


def test_every_sample_is_in_one_chunk_of_bounded_size() -> None:
    lengths = torch.randint(1, 60, (500,)).sort().values
    chunks = plan(lengths, 256, 16)
    assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])] and chunks[-1][1] == 500
    assert max((last - first) * int(lengths[last - 1]) for first, last in chunks) <= 1.5 * 256 + 60
    assert plan(torch.tensor([5]), 1) == [(0, 1)]


def test_a_few_long_samples_do_not_pad_the_short_ones() -> None:
    lengths = torch.tensor([4] * 100 + [60])
    assert plan(lengths, 10**6, 32) == [(0, 100), (100, 101)]


def test_hidden_states_follow_their_samples() -> None:
    world = World()
    with torch.inference_mode():
        chunks = []
        for length in (3, 5, 6):
            batch = {"input_ids": make_batches(4, 4, length, length)[0]["input_ids"]}
            batch["input_ids"] = torch.randint(3, 60, (4, length))
            chunks.append(Chunk(world.embed(batch), torch.full((4,), length)))
        kept = torch.tensor([0, 2, 3, 4, 9, 11])
        rows = [chunk.state.hidden_states[number] for chunk in chunks for number in range(4)]
        keys = torch.cat([chunk.state.batched["key"] for chunk in chunks])
        policy = Wanted()
        policy.bind(world.exit_layers, world.num_labels)
        layout = PaddedLayout(CompiledNetwork(world, policy), 10**6, 10**6)
        (chunk,) = layout.repack(chunks, kept, kept)
    assert chunk.lengths.tolist() == [3, 3, 3, 5, 6, 6]
    assert chunk.state.batched["key"].tolist() == keys[kept].tolist()
    for number, old in enumerate(kept.tolist()):
        length = int(chunk.lengths[number])
        assert torch.equal(chunk.state.hidden_states[number, :length], rows[old])
        assert chunk.state.attention_mask[number].tolist() == [place < length for place in range(6)]


def test_samples_of_chunks_with_and_without_padding_are_joined() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    backbone = Backbone.from_params(Params({"config": {"model_type": "bert", "vocab_size": 60, **sizes}}))
    network = MultiExitEncoder(2, backbone).eval()
    policy = Final()
    policy.bind(network.exit_layers, 2)
    compiled = CompiledNetwork(network, policy)
    lengths = torch.tensor([5, 6, 6, 6])
    ids = torch.randint(3, 60, (4, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < lengths[:, None]
    with torch.inference_mode():
        chunks = [
            Chunk(compiled.embed({"input_ids": ids[rows], "attention_mask": mask[rows]}), lengths[rows])
            for rows in (slice(0, 2), slice(2, 4))
        ]
        assert [bool(chunk.state.batched) for chunk in chunks] == [True, False]
        kept = torch.tensor([1, 2, 3])
        (joined,) = PaddedLayout(compiled, 10**6, 10**6).repack(chunks, kept, kept)
        found = compiled.advance(1, joined.state).hidden_states
        wanted = network.advance(1, network.embed({"input_ids": ids[1:]})).hidden_states
    assert torch.allclose(found, wanted, atol=1e-5)
