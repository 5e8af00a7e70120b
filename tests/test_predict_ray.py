"""Prediction by Ray Data, and the loss of a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_project import load_script

ray = pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")


def test_a_sharded_data_set_survives_the_loss_of_a_worker(trained: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    from beem_plugin import load

    rows = 60
    texts = [f"a {'good' if row % 3 else 'bad'} film {row}" for row in range(rows)]
    shards, died = tmp_path / "shards", tmp_path / "died"
    shards.mkdir()
    for shard in range(3):
        part = range(shard, rows, 3)
        table = {"id": list(part), "sentence": [texts[row] for row in part], "label": ["?"] * len(part)}
        pyarrow.parquet.write_table(pyarrow.table(table), shards / f"{shard}.parquet")
    script = load_script("predict_ray")

    class DiesOnce(script["Predict"]):  # type: ignore[misc, name-defined]
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            import os

            if 31 in batch["id"] and not died.exists():
                died.touch()
                os._exit(1)
            found: dict[str, Any] = super().__call__(batch)
            return found

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        given = [str(trained / "model.tar.gz"), f"{shards}/*.parquet", str(tmp_path / "out"), "--batch-size", "5"]
        script["main"](given, DiesOnce)
    finally:
        ray.shutdown()
    assert died.exists()
    found = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["id"] for row in found) == list(range(rows))
    expected = load(trained / "model.tar.gz")(texts)
    for row in found:
        assert row["sentence"] == texts[row["id"]] and row["gold_label"] == "?"
        assert (row["label"], row["exit"]) == (expected[row["id"]]["label"], expected[row["id"]]["exit"])
