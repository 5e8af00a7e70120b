"""Runs all exits over reference captions and keeps their summaries of each token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.exits.token_signals import SUMMARIES
from beem_plugin.models.multi_exit_captioner import MultiExitCaptioner


@torch.inference_mode()
def trace_captions(model: MultiExitCaptioner, batches: Iterable[dict[str, Tensor]], source: str) -> TokenTrace:
    """
    Teacher-forced: every token is predicted from the reference's tokens before it, by every exit. Images exit their
    encoder as in decoding.

    # Parameters

    model : `MultiExitCaptioner`
    batches : `Iterable[dict[str, Tensor]]`
        As the captions collator makes them, in any order; `index` is each caption's position in the data set.
    source : `str`
        The name of the data, for the reports.

    # Returns

    `TokenTrace`
        In the data set's order.
    """
    was_training = model.training
    model.eval()
    parts: list[dict[str, Tensor]] = []
    seen = 0
    for batch in batches:
        size = len(batch["input_ids"])
        index = batch["index"].cpu() if "index" in batch else torch.arange(seen, seen + size)
        parts.append(trace_batch(model, batch, index))
        seen += size
    model.train(was_training)
    meta: dict[str, Any] = {
        "exit_layers": model.exit_layers,
        "metric": model.metric,
        "source": source,
        "calibration_target": model.calibration_target,
    }
    if not parts:
        nothing, empty = torch.zeros(0, model.num_exits), torch.zeros(0, dtype=torch.int64)
        return TokenTrace(
            nothing.long(), nothing, nothing, nothing, empty, empty, empty, model.decoder.num_labels, meta=meta
        )
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    order = (columns["caption"] * (int(columns["position"].max()) + 1) + columns["position"]).argsort()
    columns = {name: value[order] for name, value in columns.items()}
    fields = (*SUMMARIES, "target", "caption", "position")
    signals = {name: value for name, value in columns.items() if name not in fields}
    return TokenTrace(
        **{name: columns[name] for name in fields}, num_words=model.decoder.num_labels, signals=signals, meta=meta
    )


def trace_batch(model: MultiExitCaptioner, batch: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """The trace's columns for one batch, on the CPU, its tokens caption by caption."""
    decoder, device = model.decoder, model.device
    tokens = batch["input_ids"].to(device)
    counted = batch["attention_mask"][:, 1:].bool()
    images = batch.get("pixel_values")
    states = None if images is None else model.image_states_for_decoding(images.to(device))
    if states is not None and "image_of_row" in batch:
        states = states.index_select(0, batch["image_of_row"].to(device))
    row, position = counted.nonzero(as_tuple=True)
    on_device = counted.to(device)
    exits = [
        (hidden[on_device], previous[on_device])  # (words, hidden)
        for _, hidden, previous in decoder.exit_states(tokens[:, :-1], states)
    ]
    along = position.to(device)
    names = [*SUMMARIES, *sorted(decoder.available_signals - {"position"})]
    columns: dict[str, list[list[Tensor]]] = {name: [[] for _ in exits] for name in names}
    chunk = max(1, model.chunk_elements // decoder.num_labels)
    for start in range(0, len(row), chunk):
        rows = slice(start, start + chunk)
        memory: dict[str, Tensor] = {}
        for number, (hidden, previous) in enumerate(exits, 1):
            signals = decoder.token_signals(number, hidden[rows], previous[rows], along[rows], memory)
            for name in names:
                value = getattr(signals.summary, name) if name in SUMMARIES else signals.signal(name).float()
                columns[name][number - 1].append(value.cpu())
            if decoder.remembers and number < decoder.num_exits:
                decoder.remember(number, hidden[rows], memory)
    stacked = {
        name: torch.stack([torch.cat(values) if values else torch.zeros(0) for values in per_exit], 1)
        for name, per_exit in columns.items()
    }
    return {
        **stacked,
        "target": tokens[:, 1:][on_device].cpu(),
        "caption": index.cpu()[row.cpu()],
        "position": position.cpu(),
    }
