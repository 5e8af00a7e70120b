"""A damaged or hostile archive ends in one line that names the file in it: no traceback, no question, no code run."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from beem_plugin.common.archive_files import opened_archive, verify_digests
from beem_plugin.common.errors import DataError
from tests.tiny_project import run

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def unpacked(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(trained / "model.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def write(name: str, content: bytes) -> Change:
    return lambda folder: None if (folder / name).write_bytes(content) else None


def folder_for(name: str) -> Change:
    def changed(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return changed


def without_digests(change: Change) -> Change:
    """As an archive of an older release."""

    def changed(folder: Path) -> None:
        change(folder)
        update("meta.json", digests=None)(folder)

    return changed


def update(name: str, **values: Any) -> Change:
    def changed(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))

    return changed


def remove(name: str, change: Change = lambda folder: None) -> Change:
    def changed(folder: Path) -> None:
        change(folder)
        (folder / name).unlink()

    return changed


def tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def changed(folder: Path) -> None:
        path = folder / "weights.safetensors"
        state = load_file(path)
        name = next(name for name in state if name.endswith("word_embeddings.weight"))
        save_file({**state, name: change(state[name])}, path, metadata={"aliases": "{}"})

    return changed


def remote_code(folder: Path) -> None:
    update("tokenizer/tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]}, tokenizer_class="Own")(
        folder
    )
    (folder / "tokenizer" / "own.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'w')\nclass Own: pass\n")


JSON_FILES = (
    "config.json",
    "meta.json",
    "calibration/policy.json",
    "calibration/report.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "backbone/config.json",
)
CONTENTS = {
    "null": b"null",
    "list": b"[1]",
    "number": b"3",
    "empty": b"",
    "cut": b'{"a": ',
    "binary": bytes(range(256)),
    "utf16": '{"a": 1}'.encode("utf-16"),
    "nested": b"[" * 100_000,
    "digits": b'{"a": ' + b"1" * 5000 + b"}",
}
NAN = float("nan")
CHANGES: dict[str, tuple[Change, str]] = {
    **{f"{name} {kind}": (write(name, data), name) for name in JSON_FILES[:3] for kind, data in CONTENTS.items()},
    **{f"{name} {kind}": (write(name, CONTENTS[kind]), name) for name in JSON_FILES[3:] for kind in ("list", "cut")},
    "reader null": (update("config.json", dataset_reader=None), "config.json: dataset_reader: found null"),
    "reader name": (update("config.json", dataset_reader="x"), "dataset_reader.type: found 'x'"),
    "model list": (update("config.json", model=[1]), "config.json: model: found"),
    "400 digits": (without_digests(update("calibration/policy.json", thresholds=10**400)), "model"),
    "policy NaN": (without_digests(update("calibration/policy.json", thresholds=[NAN, NAN])), "thresholds"),
    "remote code": (remote_code, "tokenizer"),
    "3 layers": (update("backbone/config.json", num_hidden_layers=2), "model"),
    "0 heads": (update("backbone/config.json", num_attention_heads=0), "model.encoder.backbone"),
    "negative size": (update("backbone/config.json", intermediate_size=-1), "model.encoder.backbone"),
    "activation": (update("backbone/config.json", hidden_act="x" * 10_000), "model.encoder.backbone"),
    "labels Latin-1": (without_digests(write("vocabulary/labels.txt", b"n\xe9g\npos\n")), "labels.txt: not UTF-8"),
    "labels swapped": (write("vocabulary/labels.txt", b"positive\nnegative\n"), "vocabulary/labels.txt: was changed"),
    "labels gone": (lambda folder: (folder / "vocabulary/labels.txt").unlink(), "vocabulary/labels.txt: is missing"),
    "label twice": (
        without_digests(write("vocabulary/labels.txt", b"a\na\n")),
        "a label name occurs twice",
    ),
    "weights changed": (tensors(lambda value: value * 2), "weights.safetensors: was changed"),
    "weights NaN": (without_digests(tensors(lambda value: value * NAN)), "are not finite"),
    "weights infinite": (without_digests(tensors(lambda value: value / 0)), "are not finite"),
    "weights int64": (without_digests(tensors(lambda value: value.long())), "found int64, allowed: a floating-point"),
    "weights bool": (without_digests(tensors(lambda value: value.bool())), "found bool, allowed: a floating-point"),
    "weights fp8": (
        without_digests(tensors(lambda value: value.to(torch.float8_e4m3fn))),
        "found float8_e4m3fn, allowed: float16",
    ),
    "policy a folder": (
        without_digests(folder_for("calibration/policy.json")),
        "calibration/policy.json: is a directory",
    ),
    "tokenizer gone": (remove("tokenizer/tokenizer.json"), "tokenizer/tokenizer.json: is missing"),
    "no vocabulary of tokens": (
        without_digests(
            remove(
                "tokenizer/tokenizer.json",
                update("tokenizer/tokenizer_config.json", tokenizer_class="BertTokenizer"),
            )
        ),
        "no vocabulary, only special tokens",
    ),
    "weights cut": (without_digests(write("weights.safetensors", b"\x10")), "weights.safetensors: not a weights file"),
    "digests": (update("meta.json", digests=[1]), "meta.json: digests: found list"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_archive_is_refused_in_one_line(name: str, unpacked: Path, tmp_path: Path, monkeypatch: Any) -> None:
    change, message = CHANGES[name]
    folder = tmp_path / "parts"
    shutil.copytree(unpacked, folder)
    change(folder)
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, arcname=path.name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    result = run("predict", str(archive), "-", stdin="y\nyes\n", check=False)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 1 and len(errors) == 1 and message in errors[0]
    assert not message.startswith(("config.json", "meta.json", "weights")) or str(archive) in errors[0]
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert os.listdir(scratch) == [] and not (tmp_path / "ran").exists()


def test_an_archive_without_digests_loads_with_a_note(unpacked: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        verify_digests(unpacked, {})
    assert "not verified" in caplog.text


def test_an_exported_folder_names_its_runner(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text("{}")
    with (
        pytest.raises(DataError, match="an exported folder, allowed: a model.tar.gz, .*; its runner.py predicts"),
        opened_archive(tmp_path),
    ):
        pass


def test_a_name_of_thousands_of_folders_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("a/" * 2000 + "b"))
    with pytest.raises(DataError, match="not a readable archive"), opened_archive(tmp_path / "model.tar.gz"):
        pass
