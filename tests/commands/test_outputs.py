"""No command writes over what it reads: by name, through a link, or beside a name that was given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.outputs import check_outputs
from tests.tiny_project import run


def refused(*arguments: str) -> str:
    result = run(*arguments, check=False)
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "allowed: another file" in result.stderr
    return result.stderr


@pytest.fixture
def archive(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(trained / "model.tar.gz", tmp_path))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"sentence": "the film is good"}\n')
    (tmp_path / "link.jsonl").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    return path


def test_predict(archive: Path, data: Path, tmp_path: Path) -> None:
    before = data.read_text(), archive.stat().st_size
    for output in (data, tmp_path / "link.jsonl", tmp_path / "folder" / "in.jsonl", archive):
        assert "--output-file: found" in refused("predict", str(archive), str(data), "--output-file", str(output))
    assert "--html" in refused("predict", str(archive), str(data), "--html", str(data))
    # What an interrupted call has left is not written anew while it is read.
    part = data.rename(tmp_path / "out.jsonl.part")
    refused("predict", str(archive), str(part), "--output-file", str(tmp_path / "out.jsonl"))
    assert (part.read_text(), archive.stat().st_size) == before
    run("predict", str(archive), str(part), "--output-file", str(tmp_path / "other.jsonl"))


def test_evaluate(archive: Path, data: Path, tmp_path: Path) -> None:
    out, link = str(tmp_path / "out.json"), str(tmp_path / "link.jsonl")
    for flag in ("--output-file", "--predictions-output-file"):
        assert flag in refused("evaluate", str(archive), str(data), flag, link)
        assert flag in refused("evaluate", str(archive), f"{data}[test]", flag, link)
    assert "what --output-file" in refused(
        "evaluate", str(archive), str(data), "--output-file", out, "--predictions-output-file", out
    )
    assert data.read_text() and archive.stat().st_size and not Path(out).exists()


def test_evaluate_names_its_outputs_apart(
    trained: Path, tiny_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tiny_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    archive = str(trained / "model.tar.gz")
    run("evaluate", archive, "validation", "--auto-names", "ALL")
    assert "layer_speedup" in json.loads(Path("validation.outputs").read_text())
    assert len(Path("validation.preds").read_text().splitlines()) == 40
    run("evaluate", archive, "validation,train", "--output-file", "a.json,b.json")
    assert json.loads(Path("a.json").read_text())["samples"] == 40 and Path("b.json").exists()


def test_trace_benchmark_and_calibrate(archive: Path, data: Path, tmp_path: Path) -> None:
    assert "--output-file" in refused("trace", str(archive), str(data), "--output-file", str(tmp_path / "link.jsonl"))
    csv = tmp_path / "in.csv"
    csv.write_text("sentence,label\ngood,1\n")
    assert "(.csv beside it): found" in refused(
        "benchmark", str(archive), str(csv), "--output-file", str(tmp_path / "in.json")
    )
    policy = tmp_path / "report.json"
    policy.write_text(json.dumps({"type": "patience", "patience": 1}))
    for flag, output in (("--output-policy", policy), ("--report-dir", tmp_path), ("--output-archive", policy)):
        assert flag in refused("calibrate", str(archive), "--policy", str(policy), flag, str(output))
    assert csv.read_text().startswith("sentence") and json.loads(policy.read_text())["patience"] == 1
    again = ("calibrate", str(archive), "--policy", str(policy), "--output-archive", str(archive))
    before = archive.read_bytes()
    found = run(*again, check=False)
    assert found.returncode == 1 and f"{archive} exists, allowed: a new file, or --force" in found.stderr
    assert archive.read_bytes() == before
    run(*again, "--force")  # an archive is read before it is written


def test_export_deletes_no_input(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    (folder / "export.json").write_text("{}")
    from beem_plugin.execution.onnx.export import META_NAME

    (folder / "export.json").rename(folder / META_NAME)
    inside = archive.rename(folder / "model.tar.gz")
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        result = run("export", str(inside), str(path), "--force", check=False)
        assert result.returncode == 1 and "export: found ARCHIVE" in result.stderr and inside.exists()


def test_folders_are_an_archives_parts_or_images(tmp_path: Path) -> None:
    photos, training = tmp_path / "photos", tmp_path / "run"
    for path in (
        photos / "a.JPG",
        photos / "captions.jsonl",
        training / "config.json",
        training / "calibration" / "trace.npz",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (training / "dev.jsonl").touch()
    for source, output in ((photos, photos / "a.JPG"), (training, training / "calibration" / "trace.npz")):
        with pytest.raises(ConfigurationError, match="--output-file: found .*, which is read as well"):
            check_outputs({"--output-file": str(output)}, [str(source)])
    for source, output in (
        (photos, photos / "captions.jsonl"),
        (photos, photos / "new.png"),
        (training, training / "dev.jsonl"),
        (training, training / "calibration" / "more.npz"),
    ):
        check_outputs({"--output-file": str(output)}, [str(source)])
    check_outputs(
        {"--output-file": "-", "--html": "/dev/null", "--csv": "/dev/null", "x": None}, ["-", None, "/dev/null"]
    )
