"""What `evaluate` does, by kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beem_plugin.archival import Archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Params, Registrable
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.instance import Instance
from beem_plugin.execution import Engine


class ArchiveEvaluation(Registrable):
    """
    An archive's exit policy on labelled data. Which kind it is, the model says (`default_evaluation`), or the config's
    block `evaluation`, which also holds its options.
    """

    default_implementation = "classification"

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        """
        # Parameters

        archive : `Archive`
        source : `str`
            What the validation reader reads: a split, or a file.
        batch_size : `int`, optional (default = the config's)
        engine : `Engine`, optional (default = the model's)
        predictions_file : `str`, optional
            Where the predictions go.

        # Returns

        `dict[str, Any]`
            The metrics, JSON-able.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate")


def evaluation_of(archive: Archive) -> ArchiveEvaluation:
    """The evaluation that an archive's model and config ask for."""
    config = archive.config.as_dict(quiet=True).get("evaluation") or {}
    if not isinstance(config, dict):
        raise ConfigurationError(f"evaluation: found {config!r}, allowed: a block")
    kind = archive.model.default_evaluation
    return ArchiveEvaluation.from_params(Params({"type": kind, **config} if kind else config, history="evaluation."))


def evaluation_loader(archive: Archive, instances: Sequence[Instance], batch_size: int | None) -> DataLoader:
    """The config's loader for validation, with another batch size if one is given."""
    config = archive.config.as_dict(quiet=True)
    params = config.get("validation_data_loader") or config.get("data_loader") or {}
    params = {key: value for key, value in params.items() if key != "batches_per_epoch"}
    if batch_size is not None:
        params = {"type": "bucket", "batch_size": batch_size, "num_workers": params.get("num_workers", 0)}
    reader = archive.validation_dataset_reader
    pad_token_id = reader.tokenizer.pad_token_id
    return Lazy(DataLoader, params=Params(params)).construct(
        instances=instances,
        vocab=archive.model.vocab,
        pad_token_id=pad_token_id,
        training=False,
        collator=reader.collator(archive.model.vocab, pad_token_id),
    )
