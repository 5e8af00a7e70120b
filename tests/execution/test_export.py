"""Exported segments give the exits, labels and probabilities of the network, under every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import beem_plugin.commands.export  # noqa: F401  registers the command
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.exits.policies import Beem, Final
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import CONFIGS, tiny
from tests.execution.worlds import Wanted, World, make_batches, reference, same
from tests.tiny_project import run

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beem_plugin.data.ragged_batch import ragged_batches
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.onnx.export import export_network, long_input
from beem_plugin.execution.onnx.network import OnnxNetwork

ENGINES = [Single(), Compaction(), DepthPools(tokens_per_chunk=30, window_tokens=80)]


def beem(exits: int) -> Beem:
    return Beem(thresholds=0.15, weights=[0.1 * (number + 1) for number in range(exits)])


@pytest.mark.parametrize("family", ["bert", "mpnet", "albert", "modernbert-local", "deberta-v2"])
def test_same_results_as_the_network(family: str, tmp_path: Path) -> None:
    world = World(family)
    export_network(world, beem(4), tmp_path)
    network = OnnxNetwork(tmp_path, threads=1)
    batches = make_batches(14, 5)
    expected = reference(world, beem(4), batches)
    for engine in ENGINES:
        _, found = gather_decisions(engine.run(network, network.exit_policy, ragged_batches(batches)), 3, total=14)
        same(found, expected)


def test_a_graph_keeps_the_local_window_at_every_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced at 7 tokens, all of which the window holds.
    monkeypatch.setitem(CONFIGS, "modernbert-wider", {**CONFIGS["modernbert"], "local_attention": 14})
    world = World("modernbert-wider")
    export_network(world, beem(4), tmp_path)
    network = OnnxNetwork(tmp_path, threads=1)
    for length in (1, 5, 7, 8, 9, 20, 120):
        tokens = torch.arange(2 * length).reshape(2, length) % 50 + 3
        mask = torch.ones_like(tokens)
        mask[1, max(1, length - 2) :] = 0
        batch = {"input_ids": tokens, "attention_mask": mask}
        with torch.inference_mode():
            expected, found = world.embed(batch), network.embed(batch)
            for number in (1, 2, 3, 4):
                expected, found = world.advance(number, expected), network.advance(number, found)
                logits = network.exit_signals(number, found).logits
                torch.testing.assert_close(logits, world.exit_logits(number, expected), atol=1e-3, rtol=1e-3)


def test_graphs_are_compared_at_a_long_input() -> None:
    assert long_input(tiny("bert")) == 40  # which has no more positions
    assert long_input(tiny("modernbert")) == 2 * 64 + 3


def test_exits_at_some_layers_token_types_and_full_depth(tmp_path: Path) -> None:
    world = World("bert", exit_layers=[2, 4])
    export_network(world, beem(2), tmp_path, token_types=True, full_depth=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("segment_1.onnx", "segment_2.onnx", "full_depth.onnx", "export.json")
    }
    batches = make_batches(6, 3)
    for batch in batches:
        batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) % 2) * batch["attention_mask"]
    network, full = OnnxNetwork(tmp_path, threads=1), OnnxNetwork(tmp_path, threads=1, full_depth=True)
    _, found = gather_decisions(Single().run(network, network.exit_policy, ragged_batches(batches)), 3, total=6)
    same(found, reference(world, beem(2), batches))
    _, last = gather_decisions(Compaction().run(full, Final(), ragged_batches(batches)), 3, total=6)
    torch.testing.assert_close(
        last.log_probabilities, reference(world, Final(), batches).log_probabilities, atol=1e-4, rtol=1e-4
    )


def test_inputs_that_a_graph_does_not_take(tmp_path: Path) -> None:
    export_network(World(), beem(4), tmp_path)
    network = OnnxNetwork(tmp_path, threads=1)
    tokens = torch.full((1, 41), 5)
    with pytest.raises(ConfigurationError, match="an input has 41 tokens, the graphs take at most 40"):
        network.embed({"input_ids": tokens})
    for dtype in (torch.float32, torch.bool):
        with pytest.raises(DataError, match="input_ids: found .*, allowed: whole numbers"):
            network.embed({"input_ids": tokens[:, :4].to(dtype)})
    results = [
        network.advance(1, network.embed({"input_ids": tokens[:, :4].to(dtype)})).batched["logits"]
        for dtype in (torch.int64, torch.int32)
    ]
    assert torch.equal(*results)


def test_policies_that_read_more_than_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="logits alone"):
        export_network(World(), Wanted(), tmp_path)


def test_a_folder_without_an_export(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="export.json"):
        OnnxNetwork(tmp_path)


def test_command(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    result = run("export", str(trained), str(folder))
    assert "3 segments" in result.stdout
    meta = json.loads((folder / "export.json").read_text())
    assert meta["labels"] and meta["exit_policy"]["type"] == "beem" and (folder / "tokenizer").is_dir()
    network = OnnxNetwork(folder, threads=1)
    engine: Engine = Single()
    batch = {"input_ids": torch.tensor([[2, 4, 5, 3]])}
    (executed,) = engine.run(network, network.exit_policy, ragged_batches([batch]))
    assert executed.decisions.log_probabilities.shape == (1, 2)


def test_a_folder_that_is_not_empty(trained: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "onnx", str(trained)
    folder.mkdir()
    run("export", archive, str(folder))  # an empty one is taken
    kept = folder / "notes.txt"
    kept.write_text("mine")
    refused = run("export", archive, str(folder), check=False)
    assert refused.returncode == 1 and f"{folder} is not empty: --force deletes the export in it" in refused.stderr
    assert kept.is_file()
    # What fails leaves the old export as it was.
    policy = json.dumps({"model.exit_policy": {"type": "beem", "thresholds": "best_on_validation", "weights": [1.0]}})
    failed = run("export", archive, str(folder), "--force", "-o", policy, check=False)
    assert failed.returncode == 1 and kept.is_file() and (folder / "export.json").is_file()
    run("export", archive, str(folder), "-f", "--full-depth")
    assert not kept.exists() and (folder / "full_depth.onnx").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["onnx"]


def test_force_deletes_nothing_but_an_export(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    refused = run("export", str(trained), str(tmp_path), "--force", check=False)
    assert refused.returncode == 1 and "does not look like an export (no export.json is in it)" in refused.stderr
    refused = run("export", str(trained), str(tmp_path / "thesis.tex"), check=False)
    assert refused.returncode == 1 and "is a file, allowed: a folder" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_encoder_of_any_kind_steps_alike(tmp_path: Path) -> None:
    network = MultiExitEncoder(3, tiny("distilbert")).eval()
    meta = export_network(network, beem(4), tmp_path)
    assert meta["segments"] == [f"segment_{number}.onnx" for number in (1, 2, 3, 4)]
