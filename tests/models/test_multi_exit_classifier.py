from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModel

import beem_plugin.exits.policies  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data import Vocabulary
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.models import Model, MultiExitClassifier

BERT = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}


def build(encoder: dict[str, Any] | None = None, labels: tuple[str, ...] = ("no", "yes"), **keys: Any) -> Model:
    config = {
        "type": "multi_exit_classifier",
        "encoder": {"backbone": {"config": BERT}, **(encoder or {})},
        **keys,
    }
    return Model.from_params(config, vocab=Vocabulary(labels), metric="accuracy", is_regression=False)


def batch(rows: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.ones(rows, 7, dtype=torch.int64)
    mask[1:, 4:] = 0
    return {
        "input_ids": torch.randint(4, 40, (rows, 7)) * mask,
        "attention_mask": mask,
        "label": torch.arange(rows) % 2,
    }


@pytest.mark.parametrize(
    "pooler",
    [
        "cls_pooler",
        "bert_pooler",
        {"type": "bert_pooler", "pooling": "mean"},
        {"type": "boe", "averaged": True},
        {"type": "cnn", "num_filters": 4, "ngram_filter_sizes": [2], "output_dim": 8},
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_poolers_of_allennlp_light_and_a_working_bert_pooler(pooler: Any, shared: bool) -> None:
    model = build({"pooler": pooler, "share_pooler": shared}).eval()
    output = model(**batch())
    assert output["logits"].shape == (3, 4, 2) and output["logits"].dtype == torch.float32
    output["loss"].backward()


@pytest.mark.parametrize(
    "pooler", ["cls_pooler", {"type": "bert_pooler", "pooling": "mean"}, {"type": "boe", "averaged": True}]
)
def test_half_precision_layers_give_float32_logits(pooler: Any) -> None:
    model = build({"pooler": pooler, "share_pooler": False}).eval()
    whole = model(**batch())["logits"]
    assert isinstance(model, MultiExitClassifier)
    model.encoder.to(torch.bfloat16)
    half = model(**batch())["logits"]
    assert half.dtype == torch.float32 and torch.allclose(half, whole, atol=0.05)


def test_padding_does_not_change_a_prediction() -> None:
    for pooler in ("bert_pooler", {"type": "bert_pooler", "pooling": "mean"}, {"type": "boe", "averaged": True}):
        model = build({"pooler": pooler}).eval()
        whole = batch()
        logits = model(**whole)["logits"]
        alone = {name: value[1:2] if name == "label" else value[1:2, :4] for name, value in whole.items()}
        assert torch.allclose(model(**alone)["logits"][0], logits[1], atol=1e-5)


def test_exits_at_some_layers_read_those_layers() -> None:
    torch.manual_seed(0)
    model = build({"exit_layers": [2, 4], "pooler": "cls_pooler"}).eval()
    assert isinstance(model, MultiExitClassifier)
    inputs = {name: value for name, value in batch().items() if name != "label"}
    hidden = model.encoder.backbone.transformer_model(**inputs, output_hidden_states=True).hidden_states
    logits = model(**inputs)["logits"]
    for number, layer in enumerate([2, 4]):
        expected = model.encoder.exits[number].classifier(hidden[layer][:, 0])
        assert torch.allclose(logits[:, number], expected, atol=1e-5)


@pytest.mark.parametrize("layers", [[], [1, 2], [4, 2], [2, 2, 4], [0, 4]])
def test_wrong_exit_layers_are_refused(layers: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="exit_layers"):
        build({"exit_layers": layers})


def test_shared_pooler_is_one_module() -> None:
    shared, own = build({"share_pooler": True}), build({"share_pooler": False})
    assert isinstance(shared, MultiExitClassifier) and isinstance(own, MultiExitClassifier)
    assert len({id(head.pooler) for head in shared.encoder.exits}) == 1
    assert len({id(head.pooler) for head in own.encoder.exits}) == 4


def test_bert_pooler_starts_from_the_pretrained_one(tmp_path: Any) -> None:
    from transformers import BertConfig

    torch.manual_seed(0)
    original = AutoModel.from_config(BertConfig(**{k: v for k, v in BERT.items() if k != "model_type"}))
    original.save_pretrained(tmp_path)
    config = {
        "type": "multi_exit_classifier",
        "encoder": {"backbone": {"model_name": str(tmp_path)}, "share_pooler": False},
    }
    model = Model.from_params(config, vocab=Vocabulary(["a", "b"]), metric="accuracy", is_regression=False)
    assert isinstance(model, MultiExitClassifier)
    for head in model.encoder.exits:
        assert isinstance(head.pooler, BertPooler)
        assert torch.equal(head.pooler.dense.weight, original.pooler.dense.weight)


def test_metrics_are_of_every_exit_and_of_the_last() -> None:
    model = build()
    logits = torch.zeros(4, 4, 2)
    logits[:, :, 1] = 1.0  # every exit says label 1
    logits[:2, 3, 0] = 2.0  # but the last says 0 for the first two
    label = torch.tensor([0, 0, 1, -1])
    model.update_metrics(logits, label)
    metrics = model.get_metrics(reset=True)
    assert metrics["accuracy"] == 1.0
    assert metrics["exit_1_accuracy"] == pytest.approx(1 / 3)
    assert model.get_metrics() == {}


def test_regression_and_single_labels_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="regression"):
        config = {"type": "multi_exit_classifier", "encoder": {"backbone": {"config": BERT}}}
        Model.from_params(config, vocab=Vocabulary([]), metric="pearson_spearman", is_regression=True)
    with pytest.raises(ConfigurationError, match="1 label"):
        build(labels=("only",))


@pytest.mark.parametrize(
    "policy, message",
    [
        ({"type": "max_probability", "thresholds": [0.5, 0.9]}, "allowed: 3 entries"),
        ({"type": "beem", "weights": [1.0, 2.0], "thresholds": 1.0}, "allowed: 4 entries"),
        ({"type": "fixed_exit", "exit": 5}, "allowed: 1 to 4"),
    ],
)
def test_a_policy_that_does_not_fit_the_network_is_refused_at_once(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(exit_policy=policy)
