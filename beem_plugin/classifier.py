"""Training from Python, without a config file, and the same as a scikit-learn estimator."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from beem_plugin.calibration.replay import replay
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.logging import close_logging
from beem_plugin.common.params import load_config
from beem_plugin.common.plugins import defer_import
from beem_plugin.common.registry import Params
from beem_plugin.data.vocabulary import given_labels
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.predictors.early_exit import Text, row_of, texts_of
from beem_plugin.training.new_config import Columns, config_for
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.train import train_model

ENCODER = "microsoft/mpnet-base"
SOURCE = "texts given to fit"
_TRAINING = threading.Lock()  # it seeds generators and redirects output of the whole process
KEYS = {
    "speedup": ["model.exit_policy.thresholds.speedup"],
    "epochs": ["trainer.num_epochs"],
    "learning_rate": ["trainer.optimizer.lr"],
    "batch_size": ["data_loader.batch_size"],
    "validation_fraction": ["dataset_reader.holdout_fraction"],
    "cuda_device": ["trainer.cuda_device"],
    "random_state": ["random_seed", "numpy_seed", "pytorch_seed"],
}
"""What the options of `fine_tune` set in the config."""


def fine_tune(
    texts: Iterable[Text],
    labels: Iterable[Any],
    encoder: str = ENCODER,
    overrides: dict[str, Any] | None = None,
    folder: str | Path | None = None,
    label_names: Sequence[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> EarlyExitPipeline:
    """
    Trains a classifier with exits on labelled texts, under the config that `allennlp new-config` writes for them, and
    calibrates it on rows that are held out.

    # Parameters

    texts, labels : `Iterable`
        Texts, or pairs of texts, and as many names.
    encoder, overrides : optional
        As of `EarlyExitClassifier`, whose `speedup`, `epochs`, `learning_rate`, `batch_size`, `validation_fraction`,
        `cuda_device` and `random_state` are the `options`.
    folder : `str | Path`, optional
        Keeps the data (`texts.jsonl`), the config (`config.jsonnet`) and the run (`run/`, with `model.tar.gz`). By
        default they are deleted.
    label_names : `Sequence[str]`, optional (default = the names found, sorted)
    verbose : `bool`, optional (default = `True`)
        Whether progress and metrics are shown; warnings always are.
    """
    if unknown := set(options) - set(KEYS):
        raise TypeError(f"fine_tune: found the option {min(unknown)!r}, allowed: {', '.join(KEYS)}")
    rows, names = _texts(texts), [str(label).strip() for label in given_labels(labels)]
    if len(rows) != len(names):
        raise DataError(f"labels: found {len(names)} for {len(rows)} texts, allowed: as many")
    fields = ("text1", "text2") if rows and isinstance(rows[0], tuple) and len(rows[0]) == 2 else ("text",)
    records = [texts_of(row_of(row, fields), fields) for row in rows]
    classes = Counter(names)
    if len(classes) < 2:
        raise DataError(f"labels: found {', '.join(map(repr, classes)) or 'none'}, allowed: two names or more")
    fraction = options.get("validation_fraction") or 0.1
    if round(fraction * len(rows)) < 1:
        raise DataError(f"texts: found {len(rows)}, allowed: more: validation_fraction {fraction} of them is none")
    found = Columns(list(fields), "label", classes, [sum(len(row[name].split()) for name in fields) for row in records])
    changes = {
        "dataset_reader.label_names": list(label_names or sorted(classes)),
        "dataset_reader.test_fraction": 0.0,
        "evaluate_on_test": False,
        **{key: value for name, value in options.items() if value is not None for key in KEYS[name]},
        **(overrides or {}),
    }
    with contextlib.ExitStack() as held:
        held.enter_context(_TRAINING)
        place = Path(folder or held.enter_context(tempfile.TemporaryDirectory()))
        data, config, run = place.absolute() / "texts.jsonl", place / "config.jsonnet", place / "run"
        if run.exists():
            raise ConfigurationError(f"folder: {folder} holds a run, allowed: a new folder")
        with atomic_write(data) as file:
            file.writelines(json.dumps({**row, "label": name}) + "\n" for row, name in zip(records, names, strict=True))
        with atomic_write(config) as file:
            file.write(config_for(found, str(data), encoder, config.name))
        held.enter_context(_undisturbed(verbose))
        defer_import("beem_plugin.components")
        train_model(load_config(config, changes), run, return_model=False)
        device = changes.get("trainer.cuda_device", 0 if torch.cuda.is_available() else -1)
        trained = EarlyExitPipeline.from_pretrained(run, device)
    return trained if folder else _without_paths(trained)


def _without_paths(trained: EarlyExitPipeline) -> EarlyExitPipeline:
    """Names the data by `SOURCE` in place of a file that is deleted."""
    archive, source = trained.archive, f"{SOURCE}[holdout]"
    config = archive.config.as_dict(quiet=True)
    config.update(train_data_path=f"{SOURCE}[fit]", validation_data_path=source, test_data_path=None)
    calibration: Any = archive.calibration
    if archive.calibrated_on is not None:
        calibration.trace.meta["source"] = calibration.report["source"] = source
        archive = archive._replace(calibrated_on=source)
    trained.archive = archive._replace(config=Params(config))
    return trained


@contextlib.contextmanager
def _undisturbed(verbose: bool) -> Iterator[None]:
    """Puts random generators and logging back, and without `verbose` shows nothing but warnings."""
    root, state = logging.getLogger(), get_random_state()
    level, warner = root.level, logging.StreamHandler(sys.stderr)
    warner.setLevel(logging.WARNING)
    with contextlib.ExitStack() as held:
        if not verbose:
            if not root.handlers:
                root.addHandler(warner)
            held.enter_context(contextlib.redirect_stdout(io.StringIO()))
            held.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            yield
        finally:
            close_logging()
            root.removeHandler(warner)
            root.setLevel(level)
            set_random_state(state)


class EarlyExitClassifier(ClassifierMixin, BaseEstimator):
    """
    A scikit-learn classifier of texts, or of pairs of texts, that trains an encoder with exits and predicts with early
    exit: `fit` is `fine_tune`.

    # Parameters

    encoder : `str`, optional (default = `"microsoft/mpnet-base"`)
        A hub name, a folder, or `package:minilm`.
    speedup : `float`, optional (default = `1.5`)
        The least layer speed-up: thresholds with the least error at it, on held-out rows. On a fitted classifier
        `set_params(speedup=...)` chooses them again, without training.
    epochs, batch_size : `int`, optional (default = by the number of texts, as `new-config`)
    learning_rate : `float`, optional (default = `5e-5`)
    validation_fraction : `float`, optional (default = `0.1`)
        Share of the rows that is not trained on: it chooses the epoch and the thresholds. With few rows take more.
    overrides : `dict`, optional
        Further changes to the config, as `-o` of `allennlp train`.
    serialization_dir : `str`, optional
        Keeps the data, the config and the training run in this folder, which must not hold a run.
    cuda_device : `int`, optional (default = the first GPU, or else the CPU, which is -1)
    random_state : `int`, optional (default = the seeds of AllenNLP)
    verbose : `bool`, optional (default = `False`)
        Whether progress and metrics of the training are shown.

    # Attributes

    classes_ : `np.ndarray`
        The labels, sorted: the columns of `predict_proba`.
    exits_ : `np.ndarray`
        For each text of the latest prediction, the exit that it left at, from 1. After `fit`, of the held-out rows.
    pipeline_ : `EarlyExitPipeline`
        The trained model, for all else: `pipeline_.save_pretrained(...)`, `pipeline_.benchmark(...)`.
    """

    def __init__(
        self,
        encoder: str = ENCODER,
        *,
        speedup: float = 1.5,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.1,
        overrides: dict[str, Any] | None = None,
        serialization_dir: str | None = None,
        cuda_device: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        for name, value in list(locals().items()):  # scikit-learn's rule: each argument is an attribute, unchanged
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def fit(self, X: Any, y: Any) -> EarlyExitClassifier:
        """`X`: a list, array or series of texts; pairs, or a frame of two columns. `y`: as many labels of any type."""
        self.classes_, indices = np.unique(np.asarray(given_labels(y)), return_inverse=True)
        check_classification_targets(y)
        names = [str(label).strip() for label in self.classes_]
        given, options = [names[index] for index in indices], {name: getattr(self, name) for name in KEYS}
        about = (self.encoder, self.overrides, self.serialization_dir, names, self.verbose)
        self.pipeline_ = fine_tune(X, given, *about, **options)
        self.fitted_speedup_ = self.speedup
        calibration: Any = self.pipeline_.archive.calibration
        self.exits_ = replay(self.pipeline_.model.exit_policy, calibration.trace).exits.numpy()
        return self

    def predict(self, X: Any) -> np.ndarray:
        rows = self._predictions(X)
        places = {name: place for place, name in enumerate(self.pipeline_.labels)}
        return self.classes_[np.array([places[row["label"]] for row in rows], dtype=int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Of shape `(texts, classes)`: the policy's probabilities at each text's exit."""
        rows = [list(row["probabilities"].values()) for row in self._predictions(X)]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.classes_))

    def _predictions(self, X: Any) -> list[dict[str, Any]]:
        check_is_fitted(self, "pipeline_")
        if self.speedup != self.fitted_speedup_:
            self.pipeline_ = self.pipeline_.with_policy(speedup=self.speedup)
            self.fitted_speedup_ = self.speedup
        found = self.pipeline_(_texts(X))
        self.exits_ = np.array([row["exit"] for row in found], dtype=int)
        return found


def _texts(X: Any) -> list[Text]:
    """Texts or pairs from an array, a series, a frame of one or two columns, or any other iterable."""
    if isinstance(X, str | bytes):
        raise DataError(f"X: found a {type(X).__name__}, allowed: several texts")
    items = np.asarray(X if hasattr(X, "__array__") else list(X), dtype=object).tolist()
    return [tuple(item) if isinstance(item, list) else item for item in items]
