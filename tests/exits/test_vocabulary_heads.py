from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.vocabulary_heads import PastFutureHead, VocabularyHead

WORDS, SIZE = 30, 8


def build(**config: Any) -> tuple[VocabularyHead, torch.nn.LayerNorm, torch.Tensor]:
    torch.manual_seed(0)
    norm, weight = torch.nn.LayerNorm(SIZE), torch.randn(WORDS, SIZE)
    torch.nn.init.normal_(norm.weight)
    return VocabularyHead.from_params(config, norm=norm, output_weight=weight), norm, weight


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({"type": "tied"}, 2 * SIZE),
        ({"type": "untied"}, 2 * SIZE + WORDS * SIZE),
        ({"type": "linear_shortcut"}, 2 * SIZE + SIZE * SIZE + SIZE),
        ({"type": "low_rank", "rank": SIZE}, 2 * SIZE + SIZE * SIZE + WORDS * SIZE),
        ({"type": "low_rank", "rank": 3}, 2 * SIZE + 3 * SIZE + WORDS * 3),
    ],
)
def test_heads_start_as_the_decoders_own_output(config: dict[str, Any], parameters: int) -> None:
    head, norm, weight = build(**config)
    hidden = torch.randn(5, SIZE)
    logits = functional.linear(head.features(hidden), head.weight(weight))
    expected = functional.linear(norm(hidden), weight)
    assert sum(parameter.numel() for parameter in head.parameters()) == parameters
    if config.get("rank") == 3:  # the best approximation of rank 3
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        expected = norm(hidden) @ ((left[:, :3] * values[:3]) @ right[:3]).T
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_heads_norm_is_its_own_unless_shared() -> None:
    head, norm, _ = build(type="tied")
    assert head.norm is not norm
    head, norm, _ = build(type="tied", share_norm=True)
    assert head.norm is norm


def test_a_rank_beyond_the_matrix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="head.rank: found 9, allowed: 1 to 8"):
        build(type="low_rank", rank=9)


def past_future(exits: int) -> tuple[list[PastFutureHead], torch.nn.LayerNorm, torch.Tensor]:
    torch.manual_seed(0)
    norm, weight = torch.nn.LayerNorm(SIZE), torch.randn(WORDS, SIZE)
    torch.nn.init.normal_(norm.weight)
    heads = [PastFutureHead(norm, weight, exit_number=number, num_exits=exits) for number in range(1, exits)]
    for head in heads:
        head.join(heads)
    return heads, norm, weight


def test_past_and_imitated_future_by_hand() -> None:
    heads, _, _ = past_future(4)
    with torch.no_grad():
        for parameter in torch.nn.ModuleList(heads).parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    hidden = [torch.randn(5, SIZE) for _ in heads]
    maps = [head.imitators[0] for head in heads]  # of the states of exits 2, 3 and 4
    memory: dict[str, torch.Tensor] = {}
    states: list[torch.Tensor] = []
    for number, (head, state) in enumerate(zip(heads, hidden)):
        own = head.norm(state)
        states.append(own)
        past = torch.stack(states).mean(0)
        imitations = [linear(own) for linear in maps[number:]]
        future = torch.stack(imitations).mean(0)
        share = torch.sigmoid(head.gate(torch.cat([past, future], 1)))
        torch.testing.assert_close(head.features(state, memory), share * past + (1 - share) * future)
        torch.testing.assert_close(head.imitated(state), torch.stack(imitations, 1))
        memory.update(head.memory_after(state, memory))
        assert not memory["past"].requires_grad
    assert head.features_macs() == SIZE * SIZE + 2 * SIZE


def test_imitations_are_shared_and_start_as_the_state_itself() -> None:
    heads, norm, _ = past_future(4)
    assert heads[0].imitators[1] is heads[1].imitators[0] and len(heads[2].imitators) == 1
    parameters = sum(parameter.numel() for parameter in torch.nn.ModuleList(heads).parameters())
    assert parameters == 3 * (2 * SIZE + 2 * SIZE + 1 + SIZE * SIZE + SIZE)
    hidden = torch.randn(5, SIZE)
    torch.testing.assert_close(heads[0].features(hidden), norm(hidden))
