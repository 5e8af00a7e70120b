"""Fits an exit policy on the outputs of exported graphs, which differ from the network's once they are quantized."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.calibrate import with_policy
from beem_plugin.execution.onnx.export import Refit
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.multi_exit_trace import trace_outputs
from beem_plugin.tasks.classification import text_model
from beem_plugin.tasks.task import evaluation_loader


def refit_on(archive: Archive, source: str) -> Refit:
    """Fits the policy, as it was before calibration, on what the archive's validation reader reads from `source`."""
    instances = archive.validation_dataset_reader.read(source)
    if not instances:
        raise ConfigurationError(f"--data: found no sample in {source}, allowed: one or more")
    model = text_model(archive.model)
    config = model.exit_policy.to_config() if archive.calibration is None else archive.calibration.config

    def outputs(folder: Path, meta: dict[str, Any]) -> Iterator[tuple[dict[str, Tensor], list[ExitSignals]]]:
        from beem_plugin.execution.onnx.runner import open_graph

        segments = [open_graph(folder / name) for name in meta["graphs"]]
        for batch in evaluation_loader(archive, instances, None):
            given = {name: value.numpy() for name, value in batch.items()}
            found = (map(torch.from_numpy, values) for values in all_exits(segments, given))
            yield batch, [ExitSignals(next(one), dict(zip(meta["signals"], one, strict=True))) for one in found]

    def refit(folder: Path, meta: dict[str, Any]) -> ExitPolicy:
        trace = trace_outputs(model, outputs(folder, meta), None, source)
        return text_model(with_policy(archive, config, trace).model).exit_policy

    return refit


def all_exits(segments: Sequence[Any], batch: Mapping[str, np.ndarray]) -> list[list[Any]]:
    """For each segment, a session of onnxruntime, `[logits, *signals]` of a padded batch in which no sample exits."""
    from beem_plugin.execution.onnx.runner import run_session

    given, found = dict(batch), []
    for segment in segments:
        given["hidden_states"], *outputs = run_session(segment, given)
        found.append(outputs)
    return found
