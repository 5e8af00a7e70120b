"""What the exits of an encoder read: its first token or the mean of its tokens. Decided while a config is evaluated."""

import json
import os
import re
from pathlib import Path

CLS, MEAN = "cls", "mean"
TRAINED_FOR_CLS = ("bert", "albert")
"""Model types whose pretraining made a summary of the first token."""
SENTENCE_ENCODER = ("modules.json", "config_sentence_transformers.json", "1_Pooling")
"""Files of sentence-transformers: these encoders were trained on the mean."""


def reads(name: str) -> str:
    """`"cls"` for BERT and ALBERT, by the folder's `config.json` or the hub name, `"mean"` for every other encoder."""
    path = Path(os.path.expanduser(name))
    if not path.is_dir():
        own_name = name.rpartition("/")[2].lower()
        return CLS if own_name.startswith(tuple(f"{kind}-" for kind in TRAINED_FOR_CLS)) else MEAN
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):  # reported with the config key when the encoder is read
        return MEAN
    if not isinstance(config, dict) or config.get("model_type") not in TRAINED_FOR_CLS:
        return MEAN
    is_distilled = bool(re.search("minilm|sentence-transformers", str(config.get("_name_or_path")), re.IGNORECASE))
    return MEAN if is_distilled or any((path / file).exists() for file in SENTENCE_ENCODER) else CLS
