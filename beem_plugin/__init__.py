"""
Early-exit transformers, AllenNLP-style: train, calibrate, evaluate, predict.

    from beem_plugin import load
    load("model.tar.gz")("a quiet , funny film .")

Importing this alone is cheap and registers nothing. `load`, which is `EarlyExitPipeline.from_pretrained`, and
`load_archive` register every component, as the commands and `--include-package beem_plugin` do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beem_plugin.classifier import EarlyExitClassifier
    from beem_plugin.fine_tuning import fine_tune
    from beem_plugin.pipeline import EarlyExitPipeline

    load = EarlyExitPipeline.from_pretrained

__all__ = ["EarlyExitClassifier", "EarlyExitPipeline", "fine_tune", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("EarlyExitClassifier", "fine_tune"):
        module = "classifier" if name == "EarlyExitClassifier" else "fine_tuning"
        return getattr(import_module(f"beem_plugin.{module}"), name)
    pipeline = import_module("beem_plugin.pipeline").EarlyExitPipeline
    return pipeline if name == "EarlyExitPipeline" else pipeline.from_pretrained
