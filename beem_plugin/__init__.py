"""
Early-exit transformers, AllenNLP-style: train, calibrate, evaluate, predict.

Importing this alone is cheap and registers nothing; `import beem_plugin.components` registers every component, as the
commands and `--include-package beem_plugin` do.
"""

__version__ = "0.1.0"
