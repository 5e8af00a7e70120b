"""Gathers the rows that two processes see, for test_data_loader.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from beem_plugin.common.registry import Lazy, Params
from beem_plugin.data import DataLoader, Instance, Vocabulary


def make_instances(count: int, seed: int = 0) -> list[Instance]:
    lengths = np.random.default_rng(seed).integers(3, 60, size=count).tolist()
    return [
        Instance(
            fields={},
            encoding={"input_ids": [7] * length, "attention_mask": [1] * length},
            label="yes" if row % 2 else "no",
        )
        for row, length in enumerate(lengths)
    ]


def gathered(config: dict[str, Any], count: int, training: bool, split_batches: bool, instances: list[Instance]) -> Any:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=split_batches))
    data_loader = Lazy(DataLoader, params=Params(config)).construct(
        instances=instances[:count], vocab=Vocabulary(["no", "yes"]), pad_token_id=0, training=training
    )
    prepared = accelerator.prepare_data_loader(data_loader.torch_loader)
    prepared.set_epoch(3)
    batches = [accelerator.gather_for_metrics(batch["index"]).tolist() for batch in prepared]
    return {
        "config": config,
        "count": count,
        "training": training,
        "split_batches": split_batches,
        "batches": batches,
    }


def gather_cases(output: Path) -> None:
    """Run in each process."""
    torch.set_num_threads(1)
    instances = make_instances(103)
    results = []
    for split_batches in (False, True):
        for training in (False, True):
            for count in (103, 96, 16, 8, 5):
                results.append(gathered({"batch_size": 8}, count, training, split_batches, instances[:count]))
            dropping = {"type": "bucket", "batch_size": 8, "drop_last": True}
            results.append(gathered(dropping, 103, training, split_batches, instances))
    if Accelerator(cpu=True).is_main_process:
        output.write_text(json.dumps(results))
    # Without it gloo's threads may still run when the interpreter ends, and abort the process.
    Accelerator(cpu=True).end_training()
