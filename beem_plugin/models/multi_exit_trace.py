"""The outputs of all exits of a model on a data set."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.ranks import gathered
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.execution.precision import dtype_of
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.model import evaluating
from beem_plugin.models.multi_exit_model import MultiExitModel


@torch.inference_mode()
def all_exits(
    model: MultiExitModel, batches: Iterable[dict[str, Tensor]]
) -> Iterator[tuple[dict[str, Tensor], list[Any]]]:
    """Each batch with the signals of all its exits."""
    network = model.encoder
    with evaluating(model):
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items() if name not in ("index", "label")}
            state = network.embed(inputs)
            signals = []
            for number in range(1, network.num_exits + 1):
                state = network.advance(number, state)
                signals.append(network.exit_signals(number, state))
            yield batch, signals


def trace_model(
    model: MultiExitModel, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str
) -> ExitTrace:
    """`trace_outputs` of the model itself."""
    return trace_outputs(model, all_exits(model, batches), ids, source)


def trace_outputs(
    model: MultiExitModel,
    outputs: Iterable[tuple[dict[str, Tensor], list[ExitSignals]]],
    ids: list[str] | None,
    source: str,
) -> ExitTrace:
    """The trace of batches in any order, each with the signals of its exits; `index`: places in the data set."""
    network = model.encoder
    unknown = torch.tensor(float("nan") if model.vocab.is_regression else -1)
    parts: list[dict[str, Tensor]] = []
    tokens: list[Tensor] = []
    for batch, exits in outputs:
        part = {"index": batch["index"], "logits": torch.stack([one.logits for one in exits], 1)}
        part["label"] = batch["label"] if "label" in batch else unknown.expand(len(batch["index"]))
        # An export holds the signals that its policy reads, not all.
        for name in sorted(network.available_signals & exits[0].extra.keys()):
            part[name] = torch.stack([one.extra[name] for one in exits], 1).float()
        parts.append({name: value.cpu() for name, value in part.items()})
        if network.tokens_leave:
            masks = batch["attention_mask"].cpu().bool()
            tokens += [ids[mask] for ids, mask in zip(batch["input_ids"].cpu(), masks, strict=True)]
    columns, tokens = joined_columns(parts), gathered(tokens)
    meta = trace_meta(model, source) | {"label_names": model.vocab.labels}
    if not columns:
        empty = torch.zeros(0, network.num_exits, network.num_labels)
        none = {name: torch.zeros(0, network.num_exits) for name in sorted(network.available_signals)}
        return ExitTrace(empty, unknown.new_zeros(0), ids, none, meta)
    # Outside of inference mode, so that a rule can be fitted on the trace by gradients.
    order = columns.pop("index").argsort()
    columns = {name: value[order] for name, value in columns.items()}
    depth = network.token_depth([tokens[row] for row in order.tolist()]) if tokens else None
    return ExitTrace(columns.pop("logits"), columns.pop("label"), ids, columns, meta, depth)


def joined_columns(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The columns of the batches of all processes below each other; empty without a batch."""
    parts = gathered(parts)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}


def trace_meta(model: MultiExitModel, source: str) -> dict[str, Any]:
    """What a trace stores of its model, and which data it is of."""
    layers, costs = model.encoder.exit_layers, exit_costs(model.encoder)
    meta: dict[str, Any] = {"exit_layers": layers, "metric": model.metric, "source": source}
    if dtype_of(model.encoder) != "float32":
        meta["dtype"] = dtype_of(model.encoder)
    return meta if costs == layers else {**meta, "exit_costs": costs}
