"""Head families, poolers and signals against their formulas."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from allennlp_light.modules.seq2vec_encoders import Seq2VecEncoder
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.heads import HeadFamily, HeadSizes
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signal_modules import uncertainty_features


def build(config: Any, hidden: int = 16, exits: int = 4, labels: int = 3, **keys: Any) -> list[Any]:
    torch.manual_seed(3)
    keys = {"share_pooler": False, **keys}
    sizes = HeadSizes(exits, hidden, labels, 0.0, lambda: BertPooler(hidden), **keys)
    return list(HeadFamily.from_params(config).build(sizes))


def sample(rows: int = 2, tokens: int = 5, hidden: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    mask[0, 3:] = False
    return torch.randn(rows, tokens, hidden, generator=generator), mask


def test_an_attention_head_of_fastbert_has_181_thousand_parameters() -> None:
    heads = build("attention", hidden=768, exits=12, labels=2)
    counts = [sum(parameter.numel() for parameter in head.parameters()) for head in heads]
    assert counts == [768 * 128 + 128 + 5 * (128 * 128 + 128) + 128 * 2 + 2] * 12
    assert counts[0] == 181_250


def test_an_attention_head_is_attention_from_the_first_token_over_real_tokens() -> None:
    (head, *_) = build({"type": "attention", "size": 8, "num_heads": 2})
    hidden, mask = sample()
    output = head.eval()(hidden, mask, {})
    for row in range(2):
        tokens = torch.tanh(head.reduce(hidden[row, mask[row]]))
        query, key, value = head.query(tokens), head.key(tokens), head.value(tokens)
        parts = []
        for first in (0, 4):
            part = slice(first, first + 4)
            scores = query[:, part] @ key[:, part].T / 2  # every token's, of which the first is read
            parts.append(scores.softmax(-1) @ value[:, part])
        pooled = torch.tanh(head.dense(head.merge(torch.cat(parts, -1))[0]))
        torch.testing.assert_close(output.pooled[row], pooled)
        torch.testing.assert_close(output.logits[row], head.classifier(pooled))


@pytest.mark.parametrize("config", [{"num_heads": 3}, {"num_heads": 0}, {"attention_dropout": 1.0}])
def test_attention_options_out_of_range(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="allowed"):
        build({"type": "attention", **config})


@pytest.mark.parametrize("normalization", ["log_softmax", "none", "layer_norm"])
def test_a_cascaded_head_sees_the_logits_of_the_one_before(normalization: str) -> None:
    heads = build({"type": "cascaded", "normalization": normalization})
    assert [head.classifier.in_features for head in heads] == [16, 19, 19, 16]
    hidden, mask = sample()
    before = torch.randn(2, 3, requires_grad=True)
    head = heads[1]
    output = head(hidden, mask, {"previous_logits": before})
    normal = {
        "log_softmax": before - before.exp().sum(-1, keepdim=True).log(),
        "none": before,
        "layer_norm": (before - before.mean(-1, keepdim=True))
        / (before.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
    }[normalization]
    seen = torch.cat([head.pooler(hidden, mask), normal], -1)
    torch.testing.assert_close(output.logits, seen @ head.classifier.weight.T + head.classifier.bias)
    output.logits.sum().backward()
    assert before.grad is None, "the head before gets no gradient"
    assert torch.equal(head.memory_after(output, {})["previous_logits"], output.logits)


def test_two_labels_keep_their_confidence_unless_the_layer_norm_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = torch.tensor([[0.1, 0.0], [5.0, -5.0]])
    (_, head, _, _) = build("cascaded", labels=2)
    unsure, sure = head._normalize(before).exp()[:, 0].tolist()
    assert unsure < 0.6 and sure > 0.99
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        (_, head, _, _) = build({"type": "cascaded", "normalization": "layer_norm"}, labels=2)
    assert "without confidence" in caplog.text
    torch.testing.assert_close(head._normalize(before), torch.tensor([[1.0, -1.0]] * 2), atol=2e-3, rtol=0)


def test_cascaded_classifiers_cannot_be_shared() -> None:
    with pytest.raises(ConfigurationError, match="share_classifier"):
        build("cascaded", share_classifier=True)


def test_past_future_heads_against_the_formula() -> None:
    heads = build("past_future")
    assert [len(head.imitators) for head in heads] == [3, 2, 1, 0]
    assert heads[0].imitators[2] is heads[1].imitators[1] is heads[2].imitators[0]
    hidden, mask = sample()
    states = [head.pooler(hidden + number, mask) for number, head in enumerate(heads)]
    memory: dict[str, Tensor] = {}
    for number, head in enumerate(heads):
        output = head(hidden + number, mask, memory)
        past = sum(state.detach() for state in states[:number]) + states[number]
        if number == 3:
            mixed = past
            assert "imitated" not in output.extras
        else:
            imitated = [torch.tanh(heads[0].imitators[later](states[number])) for later in range(number, 3)]
            future = sum(imitated)
            share = torch.sigmoid(torch.cat([past, future], -1) @ head.gate.weight[0] + head.gate.bias)[:, None]
            mixed = 2 * share * past + (2 - 2 * share) * future
            torch.testing.assert_close(output.extras["imitated"], torch.stack(imitated, 1))
        torch.testing.assert_close(output.logits, head.classifier(mixed))
        torch.testing.assert_close(output.pooled, states[number])
        memory = head.memory_after(output, memory)
        assert not memory["past"].requires_grad
    heads[2](hidden, mask, memory).logits.sum().backward()
    assert heads[0].pooler.dense.weight.grad is None and heads[2].pooler.dense.weight.grad is not None


def test_past_future_adds_what_the_paper_adds() -> None:
    heads = build("past_future", hidden=768, exits=12, labels=2)
    distinct = {id(parameter): parameter.numel() for head in heads for parameter in head.parameters()}
    square = 768 * 768 + 768
    assert sum(distinct.values()) == 12 * square + 11 * square + 11 * (2 * 768 + 1) + 12 * (2 * 768 + 2)


def test_mixed_pooler_is_between_the_mean_and_the_maximum_of_real_tokens() -> None:
    pooler = Seq2VecEncoder.by_name("mixed_pooler")(embedding_dim=16)
    hidden, mask = sample()
    real = hidden[0, :3]
    torch.testing.assert_close(pooler(hidden, mask)[0], (real.amax(0) + real.mean(0)) / 2)
    with torch.no_grad():
        pooler.mix.fill_(30.0)
    torch.testing.assert_close(pooler(hidden, mask)[0], real.amax(0))
    with torch.no_grad():
        pooler.mix.fill_(-30.0)
    torch.testing.assert_close(pooler(hidden, mask)[0], real.mean(0))
    with torch.no_grad():
        pooler.mix.fill_(0.7)
    pooler(hidden, mask).sum().backward()
    assert pooler.mix.grad is not None and float(pooler.mix.grad) != 0
    assert pooler.to(torch.bfloat16)(hidden.bfloat16(), mask).dtype == torch.bfloat16


@pytest.mark.parametrize("labels", [2, 3, 7])
def test_an_equiangular_head_is_a_fixed_frame_of_equal_angles(labels: int) -> None:
    heads = build("equiangular", labels=labels)
    hidden, mask = sample(rows=6)
    for head in heads:
        angles = head.frame.T @ head.frame
        expected = torch.full((labels, labels), -1 / (labels - 1)).fill_diagonal_(1.0)
        torch.testing.assert_close(angles, expected, atol=1e-6, rtol=0)
        assert "frame" in head.state_dict() and "frame" not in dict(head.named_parameters())
        trained = head.train()(hidden, mask)  # moves the running mean
        assert trained.logits.abs().max() <= 1 + 1e-6
        output = head.eval()(hidden, mask)
        norm = head.norm
        vectors = (output.pooled - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        torch.testing.assert_close(output.logits, vectors / vectors.norm(dim=1, keepdim=True) @ head.frame)
        alone = head.train()(hidden[1:2], mask[1:2])
        torch.testing.assert_close(alone.logits, output.logits[1:2])


def test_an_equiangular_head_needs_labels_that_fit() -> None:
    for labels in (1, 17):
        with pytest.raises(ConfigurationError, match=f"found {labels} labels, allowed: 2 to 16"):
            build("equiangular", labels=labels)


def test_a_gate_reads_four_measures_of_uncertainty() -> None:
    found = uncertainty_features(torch.tensor([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]]).log())

    def entropy(*shares: float) -> float:
        return -sum(share * math.log(share) for share in shares)

    squared = entropy(49 / 54, 4 / 54, 1 / 54)  # of the squared probabilities, divided by their sum
    expected = torch.tensor([[0.7, entropy(0.7, 0.2, 0.1), 0.5, squared], [1 / 3, math.log(3), 0, math.log(3)]])
    torch.testing.assert_close(found, expected)
