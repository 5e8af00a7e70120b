"""Runs all exits over reference captions and stores a summary of each exit's distribution for every token."""

from collections.abc import Iterable

import torch
from torch import Tensor

from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.exits.token_signals import SUMMARIES
from beem_plugin.models.model import evaluating
from beem_plugin.models.multi_exit_captioner import MultiExitCaptioner
from beem_plugin.models.multi_exit_trace import joined_columns


@torch.inference_mode()
def trace_captions(model: MultiExitCaptioner, batches: Iterable[dict[str, Tensor]], source: str) -> TokenTrace:
    """
    Teacher forcing: every exit predicts each token from the preceding tokens of the reference. Images exit the image
    encoder as in decoding. Parameters and result are those of `Task.trace`; there is a batch at least.
    """
    parts: list[dict[str, Tensor]] = []
    num_captions = 0
    with evaluating(model):
        for batch in batches:
            size = len(batch["input_ids"])
            index = batch["index"].cpu() if "index" in batch else torch.arange(num_captions, num_captions + size)
            parts.append(trace_batch(model, batch, index))
            num_captions += size
    columns = joined_columns(parts)
    order = (columns["caption"] * (int(columns["position"].max()) + 1) + columns["position"]).argsort()
    columns = {name: value[order] for name, value in columns.items()}
    named = {name: columns.pop(name) for name in (*SUMMARIES, "target", "caption", "position")}
    meta = {name: getattr(model, name) for name in ("exit_layers", "metric", "calibration_target")} | {"source": source}
    return TokenTrace(**named, num_words=model.decoder.num_labels, signals=columns, meta=meta)


def trace_batch(model: MultiExitCaptioner, batch: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """The columns of the trace for one batch, on the CPU, tokens in the order of the captions."""
    decoder, device = model.decoder, model.device
    tokens = batch["input_ids"].to(device)
    is_target = batch["attention_mask"][:, 1:].bool()
    images = batch.get("pixel_values")
    states = None
    if images is not None:
        states = model.decoding.encode(decoder.backbone, model.exit_policy, images.to(device)).states
        if "image_of_row" in batch:
            states = states.index_select(0, batch["image_of_row"].to(device))
    row, position = is_target.nonzero(as_tuple=True)
    on_device = is_target.to(device)
    exits = [
        # (tokens, hidden) each
        (hidden[on_device], previous[on_device], decoder.exit_input(number, hidden)[on_device])
        for number, hidden, previous in decoder.exit_states(tokens[:, :-1], states)
    ]
    device_position = position.to(device)
    names = [*SUMMARIES, *sorted(decoder.available_signals - {"position"})]
    columns: dict[str, list[list[Tensor]]] = {name: [[] for _ in exits] for name in names}
    chunk = max(1, model.chunk_elements // decoder.num_labels)
    for start in range(0, len(row), chunk):
        rows = slice(start, start + chunk)
        memory: dict[str, Tensor] = {}
        for number, (hidden, previous, read) in enumerate(exits, 1):
            given = (hidden[rows], previous[rows], device_position[rows])
            signals = decoder.token_signals(number, *given, memory, read=read[rows])
            for name in names:
                value = getattr(signals.summary, name) if name in SUMMARIES else signals.signal(name).float()
                columns[name][number - 1].append(value.cpu())
            if decoder.remembers and number < decoder.num_exits:
                decoder.remember(number, read[rows], memory)
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
