"""The vocabulary of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.training.serialization import VOCABULARY_DIR


def make_vocabulary(
    config: dict[str, Any] | None,
    datasets: dict[str, Sequence[Instance]],
    names: list[str] | None,
    reader: DatasetReader,
    serialization_dir: Path,
    is_recovering: bool,
) -> Vocabulary:
    """From the directory of a run that is recovered, from the config's files, or from the labels of the data."""
    saved = serialization_dir / VOCABULARY_DIR
    if is_recovering and saved.is_dir():
        return Vocabulary.from_files(saved)
    config = dict(config or {})
    kind = config.pop("type", "from_instances")
    if kind == "from_files" and set(config) == {"directory"}:
        return Vocabulary.from_files(config["directory"])
    if kind not in ("from_files", "from_instances"):
        raise ConfigurationError(not_allowed("vocabulary.type", kind, ["from_files", "from_instances"]))
    if kind == "from_files" or config:
        raise ConfigurationError(
            f"vocabulary: found keys {', '.join(config) or 'none'}, allowed: `directory` with type from_files, "
            "none with type from_instances"
        )
    for name in names or []:
        if name not in datasets:
            raise ConfigurationError(not_allowed("datasets_for_vocab_creation", name, datasets))
    chosen = (instance for name in names or datasets for instance in datasets[name])
    return Vocabulary.from_instances(chosen, reader.label_names)
