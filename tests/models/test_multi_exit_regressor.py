from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import pearsonr, spearmanr

import beem_plugin.exits.policies  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data import Instance, Vocabulary
from beem_plugin.models import Model, MultiExitRegressor
from beem_plugin.models.multi_exit_trace import trace_model
from tests.objectives.tiny_model import BERT


def build(labels: tuple[str, ...] = (), encoder: dict[str, Any] | None = None, **keys: Any) -> MultiExitRegressor:
    config = {"type": "multi_exit_regressor", "encoder": {"backbone": {"config": BERT}, **(encoder or {})}, **keys}
    model = Model.from_params(
        config,
        vocab=Vocabulary(labels),
        metric="pearson_spearman" if not labels else "accuracy",
        is_regression=not labels,
    )
    assert isinstance(model, MultiExitRegressor)
    return model


def batch(rows: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    label = 5 * torch.rand(rows, generator=generator)
    label[-1] = math.nan
    ids = torch.randint(4, 20, (rows, 5), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "label": label}


def test_one_value_an_exit_and_its_mean_squared_error() -> None:
    model = build(objective={"type": "weighted_distillation", "distillation": "off", "layer_weights": "uniform"}).eval()
    found = model(**batch())
    assert found["logits"].shape == (6, 3, 1) and found["logits"].dtype == torch.float32
    squared = (found["logits"][:-1, :, 0] - batch()["label"][:-1, None]) ** 2
    assert found["loss"].item() == pytest.approx(squared.mean().item(), rel=1e-5)


def test_metrics_are_the_correlations_of_every_exit_over_all_batches() -> None:
    model = build().eval()
    values, label = torch.randn(20, 3, 1), torch.randn(20)
    label[3] = math.nan
    model.update_metrics(values[:12], label[:12])
    state = model.metric_state()
    model.get_metrics(reset=True)
    assert model.get_metrics() == {}
    model.load_metric_state(state)
    model.update_metrics(values[12:], label[12:])
    found = model.get_metrics()
    known = ~label.isnan()
    for number in (1, 2, 3):
        given, gold = values[known, number - 1, 0].numpy(), label[known].numpy()
        assert found[f"exit_{number}_pearson"] == pytest.approx(pearsonr(gold, given).statistic, abs=1e-6)
        assert found[f"exit_{number}_spearman"] == pytest.approx(spearmanr(gold, given).statistic, abs=1e-6)
    assert found["pearson"] == found["exit_3_pearson"] and found["spearman"] == found["exit_3_spearman"]
    assert found["pearson_spearman"] == pytest.approx((found["pearson"] + found["spearman"]) / 2)
    assert "exit_1_accuracy" not in found


@pytest.mark.parametrize(
    "keys, message",
    [
        (
            {"exit_policy": {"type": "entropy", "thresholds": 0.1}},
            "exit policy entropy: found a regression.*predicted_e",
        ),
        ({"exit_policy": "beem"}, "exit policy beem: found a regression"),
        ({"exit_policy": {"type": "patience", "patience": 3}}, "patience.tolerance: found nothing"),
        ({"exit_policy": {"type": "halting"}}, r"needs the signals \['halt'\]"),
        ({"exit_policy": {"type": "predicted_error", "thresholds": "error_rate"}}, "counts errors"),
        ({"objective": "diverse"}, "objective diverse: found a regression"),
        ({"encoder": {"signals": ["gate"]}}, "signals.gate: found a regression"),
    ],
)
def test_what_needs_probabilities_is_refused_before_training(keys: dict[str, Any], message: str) -> None:
    encoder = {"signals": ["predicted_error"]} if "thresholds" in str(keys) else None
    with pytest.raises(ConfigurationError, match=message):
        build(**{"encoder": encoder, **keys})


def test_a_classification_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="multi_exit_regressor: found a task with labels"):
        build(labels=("no", "yes"))


def test_traces_hold_values_and_unknown_labels() -> None:
    model = build(
        encoder={"signals": ["predicted_error"]}, objective={"type": "learned_exit", "objective": "final_exit"}
    )
    samples = {**batch(), "index": torch.tensor([5, 4, 3, 2, 1, 0])}
    trace = trace_model(model, [samples], None, "here")
    assert trace.is_regression and trace.metric == "pearson_spearman" and trace.meta["label_names"] == []
    assert trace.known.tolist() == [False] + 5 * [True]
    assert torch.equal(trace.labels[1:], samples["label"].flip(0)[1:])
    del samples["label"]
    assert not trace_model(model, [samples], None, "here").known.any()
    assert len(trace_model(model, [], None, "here")) == 0


@pytest.mark.parametrize("start_at_mean", [True, False])
def test_new_exits_start_from_the_mean_of_the_labels(start_at_mean: bool) -> None:
    model = build(start_at_mean=start_at_mean)
    with torch.no_grad():
        model.encoder.exits[1].classifier.bias.fill_(0.5)
    model.prepare([Instance({}, {}, label) for label in (1.0, 4.0, None, 4.0)])
    biases = [float(head.classifier.bias.detach()) for head in model.encoder.exits]
    assert biases == ([3.0, 0.5, 3.0] if start_at_mean else [0.0, 0.5, 0.0])
