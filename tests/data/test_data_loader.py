from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.data import DataLoader, Instance, Vocabulary, collate
from tests.data.two_processes import gather_cases, make_instances
from tests.forked import two_processes

VOCAB = Vocabulary(["no", "yes"])


def loader(config: dict[str, Any] | str, count: int = 103, training: bool = True) -> DataLoader:
    extras = {"instances": make_instances(count), "vocab": VOCAB, "pad_token_id": 0, "training": training}
    return Lazy(DataLoader, params=Params({"type": config} if isinstance(config, str) else config)).construct(**extras)


def order(data_loader: DataLoader, epoch: int = 0) -> list[list[int]]:
    data_loader.set_epoch(epoch)
    return [batch["index"].tolist() for batch in data_loader]


def padding_share(data_loader: DataLoader) -> float:
    masks = [batch["attention_mask"] for batch in data_loader]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


CONFIGS: list[dict[str, Any]] = [
    {"batch_size": 8},
    {"type": "bucket", "batch_size": 8, "padding_noise": 0.0},
    {"type": "simple", "batch_size": 8, "shuffle": True},
    {"type": "multiprocess", "batch_size": 8, "shuffle": True},
    {"type": "multiprocess", "batch_sampler": {"type": "bucket", "batch_size": 8, "sorting_keys": ["tokens"]}},
    {"type": "multiprocess", "batch_sampler": {"type": "max_tokens_sampler", "max_tokens": 300}},
]


def test_collate_pads_to_the_longest_of_the_batch() -> None:
    rows = [
        Instance({}, {"input_ids": [5, 6], "attention_mask": [1, 1], "token_type_ids": [0, 1]}, "yes"),
        Instance({}, {"input_ids": [5], "attention_mask": [1], "token_type_ids": [1]}),
    ]
    batch = collate(rows, VOCAB, pad_token_id=9, indices=[4, 2])
    assert batch["input_ids"].tolist() == [[5, 6], [5, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1], [1, 0]]
    assert batch["label"].tolist() == [1, -1] and batch["index"].tolist() == [4, 2]
    assert all(value.dtype == torch.int64 for value in batch.values())
    rows[0].label = 2.5
    label = collate(rows, Vocabulary([]), pad_token_id=9)["label"]
    assert label.dtype == torch.float32 and label[0] == 2.5 and math.isnan(label[1])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("training", [True, False])
def test_every_row_comes_once_and_the_order_hangs_on_seed_and_epoch(config: dict[str, Any], training: bool) -> None:
    data_loader = loader(config, training=training)
    first = order(data_loader, 0)
    assert sorted(row for batch in first for row in batch) == list(range(103))
    assert len(data_loader) == len(first)
    later = order(data_loader, 3)
    assert (later == first) is not training
    assert order(loader(config, training=training), 3) == later
    assert order(loader({**config, "seed": 5}, training=training), 0) != first or not training
    if data_loader.batches.batch_size:
        assert [len(batch) for batch in first] == [8] * 12 + [7]


def test_iterating_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    order(loader({"batch_size": 8}))
    assert torch.equal(torch.rand(3), expected)


def test_bucket_pads_far_less_than_plain_shuffling() -> None:
    plain = padding_share(loader({"type": "simple", "batch_size": 16, "shuffle": True}, count=600))
    bucket = padding_share(loader({"batch_size": 16}, count=600))
    evaluation = padding_share(loader({"batch_size": 16}, count=600, training=False))
    assert plain > 0.35 and bucket < 0.1 and evaluation < 0.05


def test_evaluation_order() -> None:
    assert order(loader({"type": "simple", "batch_size": 4}, 6, training=False)) == [[0, 1, 2, 3], [4, 5]]
    data_loader = loader({"batch_size": 4}, training=False)
    lengths = [len(data_loader.instances[row]) for batch in order(data_loader) for row in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_neighbouring_rows_stay_together() -> None:
    sampler = {"type": "simple", "batch_size": 10, "rows_together": 5}
    data_loader = loader({"type": "multiprocess", "batch_sampler": sampler})
    epochs = [order(data_loader, epoch) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    for batches in epochs:
        rows = [row for batch in batches for row in batch]
        assert sorted(rows) == list(range(103))
        starts = [row for row in rows if row % 5 == 0]
        assert starts != sorted(starts)
        assert rows == [row for start in starts for row in range(start, min(start + 5, 103))]
    with pytest.raises(ConfigurationError, match="rows_together: found 11"):
        loader({"type": "multiprocess", "batch_sampler": {**sampler, "rows_together": 11}})


def test_max_tokens_are_kept() -> None:
    data_loader = loader({"type": "multiprocess", "batch_sampler": {"type": "max_tokens_sampler", "max_tokens": 200}})
    sizes = [batch["input_ids"].numel() for batch in data_loader]
    assert max(sizes) <= 200 and sum(sizes) / len(sizes) > 120


@pytest.mark.parametrize("name", ["bucket", "simple"])
def test_drop_last_is_for_training(name: str) -> None:
    config = {"type": name, "batch_size": 8, "drop_last": True, "shuffle": True}
    epochs = [order(loader(config), epoch) for epoch in range(6)]
    assert all([len(batch) for batch in batches] == [8] * 12 for batches in epochs)
    # not always the same rows are left out
    dropped = [set(range(103)) - {row for batch in batches for row in batch} for batches in epochs]
    assert len(set.union(*dropped)) > 20
    assert sum(map(len, order(loader(config, training=False)))) == 103
    with pytest.raises(ConfigurationError, match="drop_last: leaves nothing of 7 rows"):
        loader(config, count=7)


def test_batches_per_epoch_goes_on_where_the_last_epoch_ended() -> None:
    data_loader = loader({"batch_size": 10, "batches_per_epoch": 4})
    epochs = [order(data_loader, epoch) for epoch in range(5)]
    assert [len(batches) for batches in epochs] == [4] * 5 and len(data_loader) == 4
    seen = [row for batches in epochs for batch in batches for row in batch]
    assert len(set(seen[:100])) == len(set(seen[100:])) == 100


def test_single_row_and_background_workers() -> None:
    assert order(loader({"batch_size": 8}, count=1)) == [[0]]
    assert order(loader({"batch_size": 8, "num_workers": 1}, 20)) == order(loader({"batch_size": 8}, 20))


def test_misuse_is_named() -> None:
    with pytest.raises(ConfigurationError, match="batch_size: found 0"):
        loader({"batch_size": 0})
    with pytest.raises(ConfigurationError, match="exactly one of batch_size and batch_sampler"):
        loader("multiprocess")
    with pytest.raises(ConfigurationError, match="belong into batch_sampler"):
        loader({"type": "multiprocess", "shuffle": True, "batch_sampler": {"type": "bucket", "batch_size": 3}})
    with pytest.raises(ConfigurationError, match="bukket.*bucket"):
        loader("bukket")
    with pytest.raises(DataError, match="no instances"):
        loader({"batch_size": 8}, count=0)


def test_a_label_that_training_lacks_is_found_at_once() -> None:
    instances = make_instances(3) + [Instance({}, {"input_ids": [1], "attention_mask": [1]}, "maybe")]
    with pytest.raises(DataError, match="found 'maybe', allowed: yes, no"):
        Lazy(DataLoader, params=Params({})).construct(instances=instances, vocab=VOCAB, pad_token_id=0)


def test_two_processes_see_every_row_exactly_once(tmp_path: Path) -> None:
    first, second = two_processes(gather_cases, tmp_path / "out.json", folder=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr[-3000:] + second.stderr[-3000:]
    for case in json.loads((tmp_path / "out.json").read_text()):
        config, count, training = case["config"], case["count"], case["training"]
        single = order(loader(config, count, training), epoch=3)
        flat = [row for batch in single for row in batch]
        rows = [row for batch in case["batches"] for row in batch]
        if training and config.get("drop_last") and not case["split_batches"]:
            flat = flat[: len(flat) // 16 * 16]  # what does not fill a batch on both processes is left out
        assert rows == flat, case
        if case["split_batches"]:
            assert case["batches"] == single, case
