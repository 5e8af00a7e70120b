"""Training from Python: `fine_tune`, and the scikit-learn estimator `EarlyExitClassifier`."""

from __future__ import annotations

import json
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from beem_plugin import EarlyExitClassifier, fine_tune, load
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.params import load_config_dict
from beem_plugin.common.registry import Params
from tests.tiny_project import sentences

ROWS = sentences(120, seed=3)
TEXTS, LABELS = [text for text, _ in ROWS], [7 if label else -1 for _, label in ROWS]
CHECKS = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]
"""The checks of `check_estimator` that do not fit arrays of numbers."""


@pytest.fixture(scope="module")
def small(tiny_environment: dict[str, str]) -> EarlyExitClassifier:
    return EarlyExitClassifier(
        tiny_environment["BEEM_BACKBONE"],
        epochs=5,
        batch_size=8,
        learning_rate=3e-3,
        validation_fraction=0.2,
        cuda_device=-1,
    )


@pytest.fixture(scope="module")
def fitted(small: EarlyExitClassifier) -> EarlyExitClassifier:
    return clone(small).fit(np.array(TEXTS), np.array(LABELS))


@pytest.mark.parametrize("name", CHECKS)
def test_it_keeps_the_rules_of_scikit_learn(name: str) -> None:
    getattr(estimator_checks, name)("EarlyExitClassifier", EarlyExitClassifier())


def test_it_learns_and_predicts_with_early_exit(fitted: EarlyExitClassifier) -> None:
    again = clone(fitted)
    assert not hasattr(again, "classes_") and again.get_params() == fitted.get_params()
    assert fitted.classes_.tolist() == [-1, 7] and fitted.score(TEXTS, LABELS) > 0.9
    assert fitted.exits_.shape == (120,) and fitted.exits_.min() < 3
    found = fitted.predict(pd.Series(TEXTS))
    assert (
        found.dtype == fitted.classes_.dtype and found.tolist() == fitted.predict(pd.DataFrame({"a": TEXTS})).tolist()
    )
    probabilities = fitted.predict_proba(TEXTS)
    assert np.allclose(probabilities.sum(1), 1) and (fitted.classes_[probabilities.argmax(1)] == found).all()
    assert fitted.predict([]).shape == (0,) and fitted.predict_proba([]).shape == (0, 2)
    restored = pickle.loads(pickle.dumps(fitted))
    assert (restored.predict_proba(TEXTS) == probabilities).all()
    assert "texts given to fit[fit]" in json.dumps(restored.pipeline_.archive.config.as_dict(quiet=True))


def test_the_speed_is_set_without_training(fitted: EarlyExitClassifier) -> None:
    chosen = pickle.loads(pickle.dumps(fitted))
    mean = {}
    for speedup in (1.0, 2.0):
        chosen.set_params(speedup=speedup).predict(TEXTS)
        mean[speedup] = chosen.exits_.mean()
    assert mean[2.0] < mean[1.0] and chosen.pipeline_.model.encoder is not fitted.pipeline_.model.encoder


def test_it_works_in_a_pipeline_and_a_grid_search(fitted: EarlyExitClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def fake(texts: list[str], labels: list[str], *about: Any, **options: Any) -> Any:
        trained.append((options["epochs"], len(texts), set(labels)))
        return fitted.pipeline_

    monkeypatch.setattr("beem_plugin.classifier.fine_tune", fake)
    steps = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]), clone(fitted))
    grid = {"earlyexitclassifier__epochs": [1, 2]}
    search = GridSearchCV(steps, grid, cv=3, error_score="raise").fit([text.upper() for text in TEXTS], LABELS)
    assert trained == [(epochs, 80, {"-1", "7"}) for epochs in (1, 1, 1, 2, 2, 2)] + [(1, 120, {"-1", "7"})]
    assert search.best_score_ == pytest.approx(fitted.score(TEXTS, LABELS)) and search.score(TEXTS, LABELS) > 0.9


def test_fine_tune_keeps_what_it_did_and_leaves_the_program_as_it_was(
    small: EarlyExitClassifier, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), random.getstate(), np.random.get_state()[1].tolist())
    pairs = [(text, "it is good") for text in TEXTS[:30]]
    found = fine_tune(
        pairs, ["yes", "no"] * 15, small.encoder, {"trainer.patience": 1}, tmp_path, ["yes", "no"], verbose=False,
        epochs=1, validation_fraction=0.2, cuda_device=-1, random_state=5,
    )  # fmt: skip
    assert capfd.readouterr().out == ""
    assert before == (root.level, list(root.handlers), random.getstate(), np.random.get_state()[1].tolist())
    assert found.labels == ["yes", "no"] and found(pairs[0])["label"] in found.labels
    trained = load_config_dict(tmp_path / "run" / "config.json")
    assert (trained["trainer"]["patience"], trained["trainer"]["num_epochs"], trained["numpy_seed"]) == (1, 1, 5)
    assert trained["dataset_reader"]["text_fields"] == ["text1", "text2"]
    assert load_config_dict(tmp_path / "config.jsonnet")["model"] == trained["model"]
    assert load(tmp_path / "run")(pairs) == found(pairs)
    with pytest.raises(ConfigurationError, match="holds a run, allowed: a new folder"):
        fine_tune(pairs, ["yes", "no"] * 15, small.encoder, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="trainer.patience: found 'two'"):
        fine_tune(pairs, ["yes", "no"] * 15, small.encoder, {"trainer.patience": "two"})


def test_messages_do_not_name_a_file_that_is_deleted(
    small: EarlyExitClassifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(params: Params, *args: Any, **kwargs: Any) -> None:
        logging.getLogger("beem_plugin").warning("calibration on %s: %s", params["validation_data_path"], 3)
        raise DataError(f"{params['train_data_path']}: no label")

    monkeypatch.setattr("beem_plugin.fine_tuning.train_model", fail)
    with pytest.raises(DataError, match=r"^texts given to fit\[fit\]: no label$"):
        fine_tune(TEXTS[:30], ["yes", "no"] * 15, small.encoder)
    assert caplog.messages == ["calibration on texts given to fit[holdout]: 3"]


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], [0], "labels: found 1 for 2 texts"),
        (["a"] * 2, ["x", None], r"labels\[1\]: found None, allowed: a name or a number"),
        (["a"] * 2, pd.Series(["x", float("nan")]), r"labels\[1\]: found nan, allowed"),
        (["a"] * 2, [["x"], ["y"]], r"labels\[0\]: found a list, allowed: one label"),
        (["a"] * 5, ["x"] * 5, "labels: found 'x', allowed: two names or more"),
        (["a", "b"], ["x", "y"], "texts: found 2, allowed: more: validation_fraction 0.1 of them is none"),
        (pd.DataFrame({"a": ["a", "b"]}), ["x"], "labels: found 1 for 2 texts, allowed: as many"),
        (["a", 3], ["x", "y"], "text: found 3, allowed: a text"),
        ([("a", "b"), "c"], ["x", "y"], r"found 1 text\(s\) an input, allowed: 2"),
        ("a text", ["x"], "X: found a str, allowed: several texts"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(texts: Any, labels: list[Any], message: str) -> None:
    for train in (EarlyExitClassifier("missing").fit, fine_tune):
        with pytest.raises(DataError, match=message):
            train(texts, labels)
    with pytest.raises(ValueError, match="continuous"):
        EarlyExitClassifier("missing").fit(["a", "b"], [0.5, 1.25])
    with pytest.raises(NotFittedError):
        EarlyExitClassifier().predict(["a"])
    with pytest.raises(TypeError, match="found the option 'epoch', allowed: speedup, epochs"):
        fine_tune(["a"], ["b"], epoch=1)
    for fraction in (0.0, 1.5, "a"):
        with pytest.raises(ConfigurationError, match="validation_fraction: found .*, allowed: above 0 and below 1"):
            fine_tune(["a", "b"], ["x", "y"], validation_fraction=fraction)
