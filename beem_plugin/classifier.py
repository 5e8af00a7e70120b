"""Training from Python as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from beem_plugin.calibration.replay import replay
from beem_plugin.data.vocabulary import given_labels
from beem_plugin.fine_tuning import ENCODER, KEYS, fine_tune, listed_texts


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
        found = self.pipeline_(listed_texts(X))
        self.exits_ = np.array([row["exit"] for row in found], dtype=int)
        return found
