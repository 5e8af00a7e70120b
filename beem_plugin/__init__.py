"""
Early-exit transformers, AllenNLP-style: train, calibrate, evaluate, predict.

    from beem_plugin import load
    load("model.tar.gz")("a quiet , funny film .")

Importing this alone is cheap and registers nothing. `load`, which is `EarlyExitPipeline.from_pretrained`, and
`load_archive` register every component, as the commands and `--include-package beem_plugin` do.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beem_plugin.pipeline import EarlyExitPipeline

    load = EarlyExitPipeline.from_pretrained

__all__ = ["EarlyExitPipeline", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from beem_plugin.pipeline import EarlyExitPipeline

    return EarlyExitPipeline if name == "EarlyExitPipeline" else EarlyExitPipeline.from_pretrained
