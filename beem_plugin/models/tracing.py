"""Runs all exits over a data set and keeps what they said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.exits.branches import BranchedHead
from beem_plugin.models.caption_tracing import trace_captions
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_captioner import MultiExitCaptioner
from beem_plugin.models.multi_exit_model import MultiExitModel


def trace_any_model(
    model: Model, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str
) -> ExitTrace:
    """The trace of a classifier's or regressor's samples or of a captioner's words; parameters as `trace_model`."""
    if isinstance(model, MultiExitCaptioner):
        return trace_captions(model, batches, source)
    if isinstance(model, MultiExitModel):
        return trace_model(model, batches, ids, source)
    raise ConfigurationError(
        f"traces: found a model {type(model).__name__}, allowed: multi_exit_classifier, multi_exit_regressor, "
        "multi_exit_captioner"
    )


def trace_model(
    model: MultiExitModel, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str
) -> ExitTrace:
    """
    # Parameters

    model : `MultiExitModel`
    batches : `Iterable[dict[str, Tensor]]`
        As the data loader makes them, in any order; `index` says each sample's position in the data set.
    ids : `list[str]`, optional
        The samples' own identifiers, in the data set's order.
    source : `str`
        Which data these are, for the reports.

    # Returns

    `ExitTrace`
        In the data set's order.
    """
    was_training = model.training
    model.eval()
    indices, logits, labels = [], [], []
    signals: dict[str, list[Tensor]] = {name: [] for name in sorted(model.encoder.available_signals)}
    unknown = torch.tensor(float("nan") if model.vocab.is_regression else -1)
    tokens: list[Tensor] = []
    with torch.inference_mode():
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items() if name not in ("index", "label")}
            outputs = model.encoder.outputs(inputs)
            logits.append(outputs.logits.cpu())
            for name, values in signals.items():
                values.append(outputs.signals[name].float().cpu())
            indices.append(batch["index"].cpu())
            if model.encoder.tokens_leave:
                masks = batch["attention_mask"].cpu().bool()
                tokens += [ids[mask] for ids, mask in zip(batch["input_ids"].cpu(), masks, strict=True)]
            labels.append(batch["label"].cpu() if "label" in batch else unknown.expand(len(batch["index"])))
    model.train(was_training)
    meta: dict[str, Any] = {
        "exit_layers": model.encoder.exit_layers,
        "label_names": model.vocab.labels,
        "metric": model.metric,
        "source": source,
    }
    if any(isinstance(head, BranchedHead) for head in model.encoder.exits):
        meta["exit_costs"] = exit_costs(model.encoder)
    if not indices:
        empty = torch.zeros(0, model.encoder.num_exits, model.encoder.num_labels)
        none = {name: torch.zeros(0, model.encoder.num_exits) for name in signals}
        return ExitTrace(empty, unknown.new_zeros(0), ids, none, meta)
    # Outside of inference mode, so that a rule can be fitted on the trace by gradients.
    order = torch.cat(indices).argsort()
    said = {name: torch.cat(values)[order] for name, values in signals.items()}
    depth = model.encoder.token_depth([tokens[row] for row in order.tolist()]) if tokens else None
    return ExitTrace(torch.cat(logits)[order], torch.cat(labels)[order], ids, said, meta, depth)
