"""Exported segments give the exits, labels and probabilities of the network, under every engine."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import beem_plugin.commands.export  # noqa: F401  registers the command
from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.exits.policies import Beem, Final
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import CONFIGS, tiny
from tests.execution.worlds import Wanted, World, make_batches, reference, same
from tests.exits.every_policy import SIGNALS, every_policy
from tests.ragged import ragged_batches
from tests.tiny_project import run, sentences

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beem_plugin.comparison.refit_export import all_exits
from beem_plugin.execution.onnx.export import export_network, long_input
from beem_plugin.execution.onnx.graph import write_policy
from beem_plugin.execution.onnx.runner import Runner, open_graph, read_records
from beem_plugin.execution.onnx.weights import SMALLEST
from beem_plugin.execution.precision import PRECISIONS
from tests.execution.exported import run_exported


def beem(exits: int) -> Beem:
    return Beem(thresholds=0.15, weights=[0.1 * (number + 1) for number in range(exits)])


@pytest.mark.parametrize("family", ["bert", "mpnet", "albert", "modernbert-local", "deberta-v2"])
def test_same_results_as_the_network(family: str, tmp_path: Path) -> None:
    world = World(family)
    export_network(world, beem(4), tmp_path)
    batches = make_batches(14, 5)
    expected = reference(world, beem(4), batches)
    for batch_size in (1, 4, 14):
        same(run_exported(tmp_path, batches, batch_size), expected)


def test_a_graph_keeps_the_local_window_at_every_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced at 7 tokens, all of which the window holds.
    monkeypatch.setitem(CONFIGS, "modernbert-wider", {**CONFIGS["modernbert"], "local_attention": 14})
    world = World("modernbert-wider")
    export_network(world, beem(4), tmp_path)
    segments = [open_graph(tmp_path / f"segment_{number}.onnx", 1) for number in (1, 2, 3, 4)]
    for length in (1, 5, 7, 8, 9, 20, 120):
        tokens = torch.arange(2 * length).reshape(2, length) % 50 + 3
        mask = torch.ones_like(tokens)
        mask[1, max(1, length - 2) :] = 0
        batch = {"input_ids": tokens, "attention_mask": mask}
        with torch.inference_mode():
            expected, found = (
                world.embed(batch),
                all_exits(segments, {name: value.numpy() for name, value in batch.items()}),
            )
            for number in (1, 2, 3, 4):
                expected, logits = world.advance(number, expected), torch.from_numpy(found[number - 1][0])
                torch.testing.assert_close(logits, world.exit_logits(number, expected), atol=1e-3, rtol=1e-3)


def test_graphs_are_compared_at_a_long_input() -> None:
    assert long_input(tiny("bert")) == 40  # which has no more positions
    assert long_input(tiny("modernbert")) == 2 * 64 + 3


def test_exits_at_some_layers_token_types_and_full_depth(tmp_path: Path) -> None:
    world = World("bert", exit_layers=[2, 4])
    export_network(world, beem(2), tmp_path, token_types=True, full_depth=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("segment_1.onnx", "segment_2.onnx", "policy_1.onnx", "policy_2.onnx", "full_depth.onnx"),
        *("export.json", "runner.py"),
    }
    batches = make_batches(6, 3)
    for batch in batches:
        batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) % 2) * batch["attention_mask"]
    same(run_exported(tmp_path, batches), reference(world, beem(2), batches))


def test_weights_stored_in_half_precision(tmp_path: Path) -> None:
    batches, size = make_batches(14, 5), {}
    for dtype in ("float32", "bfloat16", "float16"):
        world = World("bert", exit_layers=[2, 4])
        export_network(world, beem(2), tmp_path / dtype, dtype=dtype)
        size[dtype] = sum(path.stat().st_size for path in (tmp_path / dtype).glob("segment_*.onnx"))
        large = [parameter for parameter in world.parameters() if parameter.numel() >= SMALLEST]
        for parameter in large:
            parameter.data = parameter.data.to(PRECISIONS[dtype]).float()
        same(run_exported(tmp_path / dtype, batches), reference(world, beem(2), batches))
    saved = 2 * sum(parameter.numel() for parameter in large)
    assert [size["float32"] - size[dtype] for dtype in PRECISIONS] == pytest.approx([0, saved, saved], rel=0.1)
    large[0].data[0, 0] = 1e5  # of the padding's embedding
    with pytest.raises(ConfigurationError, match="dtype: found float16, in which .* is not finite"):
        export_network(world, beem(2), tmp_path / "infinite", dtype="float16")


def test_a_policy_without_early_exits_has_one_segment(tmp_path: Path) -> None:
    world, batches = World(), make_batches(6, 3)
    written = export_network(world, Final(), tmp_path)
    assert written["segments"] == [{"exit": 4, "graph": "segment_4.onnx", "policy": "policy_4.onnx"}]
    found, expected = run_exported(tmp_path, batches), reference(world, Final(), batches)
    assert torch.equal(found.exits, expected.exits)
    torch.testing.assert_close(found.log_probabilities, expected.log_probabilities, atol=1e-4, rtol=1e-4)


class Signals(MultiExitEncoder):
    """An encoder with further signals, each read from the layer's first token."""

    @property
    def available_signals(self) -> set[str]:
        return set(SIGNALS)

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        first = state.hidden_states[:, 0]
        extra = {name: torch.sigmoid(9 * first[:, number]) for number, name in enumerate(SIGNALS)}
        return ExitSignals(self.exit_logits(exit_number, state), extra)


class EverySignal(Final):
    required_signals = SIGNALS


def test_every_policy_decides_alike(tmp_path: Path) -> None:
    network, batches = Signals(3, tiny("bert")).eval(), make_batches(14, 5)
    with torch.no_grad():
        for head in network.exits:
            head.classifier.weight.mul_(40)
    exits = set()
    # The segments are exported once, with all signals, for the graphs of all policies.
    written = export_network(
        network, EverySignal(), tmp_path, dtype="bfloat16", refit=lambda folder, meta: EverySignal()
    )
    segments = [open_graph(tmp_path / one["graph"], 1) for one in written["segments"]]
    samples = RaggedBatch.join(list(ragged_batches(batches)))
    samples = samples.select(samples.index.argsort())
    padded = samples.padded(always_mask=True)
    padded["attention_mask"] = padded["attention_mask"].long()
    outputs = all_exits(segments, {name: value.numpy() for name, value in padded.items()})
    logits, *signals = (torch.from_numpy(np.stack(column, 1)) for column in zip(*outputs, strict=True))
    trace = ExitTrace(logits, torch.full((14,), -1), signals=dict(zip(SIGNALS, signals, strict=True)))
    for policy in every_policy(4):
        names, has_score = write_policy(policy, [1, 2, 3, 4], tmp_path)
        assert names == [one["policy"] for one in written["segments"]]
        expected, found = replay(policy, trace), run_exported(tmp_path, batches)
        assert has_score == (expected.scores is not None)
        found.scores = found.scores if has_score else None
        same(found, expected)
        exits |= set(found.exits.tolist())
    assert exits == {1, 2, 3, 4}


def test_inputs_that_a_graph_does_not_take(tmp_path: Path) -> None:
    export_network(World(), beem(4), tmp_path)
    runner = Runner(tmp_path, threads=1)
    with pytest.raises(ValueError, match="input_ids: found 41 tokens, allowed: up to 40"):
        runner.run([[5] * 41], None)
    meta = json.loads((tmp_path / "export.json").read_text())
    (tmp_path / "export.json").write_text(json.dumps({**meta, "format": 1}))
    with pytest.raises(ValueError, match="found format 1, allowed: 2"):
        Runner(tmp_path)


def test_policies_that_read_signals_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"needs the signals \['wanted'\]"):
        export_network(MultiExitEncoder(3, tiny("bert")).eval(), Wanted(), tmp_path)


def test_a_folder_without_an_export(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="export.json"):
        Runner(tmp_path)


RUN = """
import json, sys
class Torchless:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "transformers", "beem_plugin", "pandas", "scipy"):
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Torchless())
sys.argv = ["runner.py", sys.argv[1], "--batch-size", "8", "--threads", "1"]
exec(compile(open("runner.py").read(), "runner.py", "exec"), {"__name__": "__main__", "__file__": "runner.py"})
"""


def predicted_without_torch(folder: Path, source: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(source)], cwd=folder, env={}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_runner_predicts_as_predict_does_without_torch(trained: Path, tmp_path: Path) -> None:
    folder, source, output = tmp_path / "onnx", tmp_path / "in.csv", tmp_path / "out.jsonl"
    rows = [f'{number},"{text}, so"' for number, (text, _) in enumerate(sentences(70, seed=5))]
    source.write_text("\n".join(["\ufeffnumber,sentence", *rows]) + "\n")
    result = run("export", str(trained), str(folder))
    assert "3 segments" in result.stdout
    meta = json.loads((folder / "export.json").read_text())
    assert meta["labels"] and meta["exit_policy"]["type"] == "beem" and (folder / "tokenizer").is_dir()
    found = predicted_without_torch(folder, source)
    run("predict", str(trained), str(source), "--output-file", str(output), "--silent")
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    assert len({row["exit"] for row in expected}) > 1
    for one, other in zip(found, expected, strict=True):
        chances = other["probabilities"]
        chances = chances if isinstance(chances, dict) else dict(zip(meta["labels"], chances, strict=True))
        assert one.pop("probabilities") == pytest.approx(chances, abs=1e-5)
        assert one.pop("score") == pytest.approx(other["score"], abs=1e-5)
        assert one == {name: other[name] for name in one}


def test_the_runner_reads_lines_and_tables() -> None:
    expected = [{"a": "x", "b": 'say "y"'}]
    for suffix, lines in (
        (".csv", ["a,b\r\n", 'x,"say ""y"""\r\n']),
        (".tsv", ["a\tb\n", 'x\tsay "y"\n']),
        (".txt", ["\n", 'x\tsay "y"\n']),
        (".jsonl", [json.dumps(expected[0]) + "\n"]),
    ):
        assert list(read_records(lines, ["a", "b"], suffix)) == expected
    for suffix, lines, table in (
        (".csv", ['"a"; b \n', 'x;"say ""y"""\n'], {}),
        (".txt", ["x|'say \"y\"'\n".replace("'", "")], {"delimiter": "|", "columns": ["a", "b"], "quoting": False}),
        (".json", ["\n", "[\n", json.dumps(expected[0]), "\n]\n"], {}),
    ):
        assert list(read_records(lines, ["a", "b"], suffix, table)) == expected
    for suffix, lines in (
        (".csv", ["a|b\n", "x|y\n"]), (".csv", ["a,b\n", "x,y,z\n"]), (".csv", ["a,b,c\n", "x,y\n"]), (".txt", ["x\n"]),
        (".json", ['["x"]'])
    ):  # fmt: skip
        with pytest.raises(ValueError, match="input 1: "):
            list(read_records(lines, ["a", "b"], suffix))
    for suffix, lines, message in (
        (".csv", ["a,b\n", '"x" y,z\n'], "',' expected after '\"'"),
        (".csv", ["a,b\n", 'x,"z\n', "u,v\n"], "unexpected end of data"),
        (".tsv", ['"a"\t"b"\n', "x\ty\n"], "found a quoted header"),
        (".jsonl", ['{"a": "x"\n'], "line 1: not valid JSON"),
    ):
        with pytest.raises((ValueError, csv.Error), match=message):
            list(read_records(lines, ["a", "b"], suffix))


def test_fewer_bits_with_a_policy_fitted_on_their_outputs(trained: Path, tmp_path: Path) -> None:
    source, rows = tmp_path / "in.txt", sentences(40, seed=9)
    source.write_text("\n".join(text for text, _ in rows))
    right, size = {}, {}
    for dtype in ("float32", "bfloat16", "int8"):
        folder = tmp_path / dtype
        run("export", str(trained), str(folder), "--dtype", dtype, "--data", "train[holdout]")
        meta = json.loads((folder / "export.json").read_text())
        assert meta["dtype"] == dtype and meta["exit_policy"]["type"] == "beem" and len(meta["segments"]) == 3
        found = predicted_without_torch(folder, source)
        assert len({one["exit"] for one in found}) > 1
        right[dtype] = sum(one["label"] == meta["labels"][label] for one, (_, label) in zip(found, rows, strict=True))
        size[dtype] = sum(path.stat().st_size for path in folder.glob("segment_*.onnx"))
    assert min(right.values()) >= right["float32"] - 4 and max(size.values()) == size["float32"]
    unfitted = run("export", str(trained), str(tmp_path / "unfitted"), "--dtype", "bfloat16")
    assert "--data fits them again" in unfitted.stderr


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
    assert [one["graph"] for one in meta["segments"]] == [f"segment_{number}.onnx" for number in (1, 2, 3, 4)]
