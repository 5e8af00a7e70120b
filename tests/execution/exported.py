"""What an exported folder gives for batches as the collator makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.execution.onnx.runner import Runner


def run_exported(folder: Path, batches: Sequence[dict[str, Tensor]], batch_size: int = 4) -> ExitDecisions:
    """Decisions in the order of the samples' `index`."""
    samples = {}
    for batch in batches:
        for row, index in enumerate(batch["index"].tolist()):
            length = int(batch["attention_mask"][row].sum())
            types = batch.get("token_type_ids", torch.zeros_like(batch["input_ids"]))
            samples[index] = batch["input_ids"][row, :length].tolist(), types[row, :length].tolist()
    ids, types = zip(*(samples[index] for index in sorted(samples)), strict=True)
    runner = Runner(folder, threads=1)
    found = runner.run(ids, types, batch_size)
    exits, output = torch.from_numpy(found.exits), torch.from_numpy(found.outputs)
    return ExitDecisions.of_output(exits, output, torch.from_numpy(found.scores), per_token=False)
