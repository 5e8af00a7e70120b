"""Training from Python, without a config file."""

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

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError, check_number
from beem_plugin.common.files import atomic_write
from beem_plugin.common.logging import close_logging
from beem_plugin.common.params import load_config
from beem_plugin.common.plugins import defer_import
from beem_plugin.common.registry import Params
from beem_plugin.data.vocabulary import given_labels
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.predictors.inputs import Text, row_of, texts_of
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
    rows, names = listed_texts(texts), [str(label).strip() for label in given_labels(labels)]
    if len(rows) != len(names):
        raise DataError(f"labels: found {len(names)} for {len(rows)} texts, allowed: as many")
    fields = ("text1", "text2") if rows and isinstance(rows[0], tuple) and len(rows[0]) == 2 else ("text",)
    records = [texts_of(row_of(row, fields), fields) for row in rows]
    classes = Counter(names)
    if len(classes) < 2:
        raise DataError(f"labels: found {', '.join(map(repr, classes)) or 'none'}, allowed: two names or more")
    given = options.get("validation_fraction")
    fraction = 0.1 if given is None else given
    check_number("validation_fraction", fraction, high=1, open_low=True, open_high=True)
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
        if not folder:
            held.enter_context(_named(str(data)))
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
def _named(path: str) -> Iterator[None]:
    """Messages and errors have `SOURCE` in place of a file that is deleted."""
    make = logging.getLogRecordFactory()

    def renamed(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.msg = str(record.msg).replace(path, SOURCE)
        if isinstance(record.args, tuple):
            record.args = tuple(one.replace(path, SOURCE) if isinstance(one, str) else one for one in record.args)
        return record

    logging.setLogRecordFactory(renamed)
    try:
        yield
    except BeemError as error:
        raise type(error)(str(error).replace(path, SOURCE)) from None
    finally:
        logging.setLogRecordFactory(make)


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


def listed_texts(X: Any) -> list[Text]:
    """Texts or pairs from an array, a series, a frame of one or two columns, or any other iterable."""
    if isinstance(X, str | bytes):
        raise DataError(f"X: found a {type(X).__name__}, allowed: several texts")
    items = np.asarray(X if hasattr(X, "__array__") else list(X), dtype=object).tolist()
    return [tuple(item) if isinstance(item, list) else item for item in items]
