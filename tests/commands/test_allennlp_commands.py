"""AllenNLP's `build-vocab`, `diff` and `cached-path`."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from beem_plugin.common.params import load_config_dict
from tests.tiny_project import CONFIGS, run

ARCHIVE = str(Path(__file__).parent.parent / "fixtures" / "release_0_1" / "classifier.tar.gz")


def test_a_vocabulary_is_written_for_another_config(tiny_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "good film,10\nbad film,9\n" * 10)
    (tmp_path / "b.csv").write_text("text,label\n" + "fine,2\n" * 4)
    config = load_config_dict(CONFIGS / "my_data.jsonnet", {"dataset_reader": {"type": "text_classification"}})
    config["dataset_reader"]["tokenizer"] = {"model_name": tiny_environment["BEEM_BACKBONE"]}
    data = {"train_data_path": str(tmp_path / "a.csv[fit]"), "validation_data_path": str(tmp_path / "b.csv")}
    (tmp_path / "c.json").write_text(json.dumps({**config, **data, "evaluate_on_test": False}))
    output = tmp_path / "new" / "vocab.tar.gz"
    done = run("build-vocab", str(tmp_path / "c.json"), str(output))
    entry = json.loads(done.stdout.splitlines()[-1])
    assert entry == {"type": "from_files", "directory": str(output)}
    with tarfile.open(output) as archive:
        assert archive.extractfile("labels.txt").read() == b"2\n9\n10\n"  # type: ignore[union-attr]
    again = ["build-vocab", str(tmp_path / "c.json"), str(output), "-o", json.dumps({"vocabulary": entry})]
    assert "exists, allowed: a new file, or --force" in run(*again, check=False).stderr
    run(*again, "--force")  # from the file that it replaces
    wrong = run("build-vocab", str(tmp_path / "c.json"), str(tmp_path / "vocab"), check=False)
    assert "allowed: a name that ends in .tar.gz" in wrong.stderr


def test_weights_are_compared(tmp_path: Path) -> None:
    a = {
        "m.layer.2.w": torch.zeros(2, 2),
        "m.layer.10.w": torch.zeros(3),
        "m.gone": torch.ones(1),
        "m.b": torch.ones(2),
    }
    torch.save(a, tmp_path / "a.th")
    b = {"layer.2.w": torch.full((2, 2), 0.5), "layer.10.w": torch.full((3,), 1e-6), "new": torch.ones(1)}
    save_file({**b, "b": torch.ones(3)}, tmp_path / "b.safetensors")
    command = ["diff", str(tmp_path / "a.th"), str(tmp_path / "b.safetensors"), "--strip-prefix-1", "m."]
    assert run(*command).stdout.splitlines() == [
        "-b, shape = (2,)",
        "+b, shape = (3,)",
        "-gone, shape = (1,)",
        "!layer.2.w, shape = (2, 2), distance = 0.5",
        " layer.10.w, shape = (3,)",
        "+new, shape = (1,)",
    ]
    scaled = run(*command, "--scale", "0.1", "--threshold", "0.1").stdout
    assert " layer.2.w, shape = (2, 2)" in scaled.splitlines()
    same = run("diff", ARCHIVE, ARCHIVE).stdout.splitlines()
    assert len(same) > 10 and all(line.startswith(" ") for line in same)
    (tmp_path / "a.th").write_bytes(b"no weights")
    damaged = run(*command, check=False)
    assert damaged.returncode == 1 and "a.th: not readable as weights: " in damaged.stderr


def test_files_are_cached_listed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, name = str(tmp_path / "cache"), str(tmp_path / "data.tar.gz")
    (tmp_path / "data.txt").write_text("data")
    with tarfile.open(name, "w:gz") as archive:
        archive.add(tmp_path / "data.txt", arcname="data.txt")
    assert run("cached-path", name, "-d", cache).stdout == f"{name}\n"
    folder = Path(run("cached-path", name, "-d", cache, "-x").stdout.strip())
    assert (folder / "data.txt").read_text() == "data" and folder.parent == Path(cache)
    (Path(cache) / "other.json").write_text("[]")
    listed = run("cached-path", "--inspect", "-d", cache).stdout
    assert listed.startswith(f"{name}\t4 bytes\t") and listed.endswith("1 entries, 4 bytes\n")
    assert run("cached-path", "*.zip", "--remove", "-d", cache).stdout == "Reclaimed 0 bytes of space\n"
    assert run("cached-path", "*.gz", "--remove", "-d", cache).stdout == "Reclaimed 4 bytes of space\n"
    assert not folder.exists() and [path.name for path in Path(cache).glob("*.json")] == ["other.json"]
    missing, closed = str(tmp_path / "none"), "http://127.0.0.1:9/x.tar.gz"
    for wrong, message in (
        ("--remove", "found no resources, allowed: one or more"),
        (missing, f"{missing}: file "),
        (closed, f"{closed}: HTTPConnectionPool"),  # one attempt: the first thing that is said is the error
    ):
        refused = run("cached-path", wrong, check=False)
        assert refused.returncode == 1 and refused.stderr.startswith("error: ") and message in refused.stderr
