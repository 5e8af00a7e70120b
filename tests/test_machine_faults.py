"""A disk that is full or a file that may not grow: one line with the path, and nothing is lost or half-written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.commands import main
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write, remove_leftovers, scratch_folder, write_errors_named
from beem_plugin.comparison.trainings.runs import Training, TrainingRun
from beem_plugin.data import TextEncoder
from beem_plugin.rendering.tables import Column, Table
from beem_plugin.training.serialization import check_serialization_dir, prepared_directory
from tests.tiny_project import CONFIGS, Result, run


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A file that grows beyond `size` bytes fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_one_line(result: Result, path: Path | str) -> None:
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 1 and len(errors) == 1 and str(path) in errors[0], result.stderr[-2000:]
    assert "Traceback" not in result.stderr and "Logging error" not in result.stderr


@pytest.mark.parametrize(
    "command, output",
    [
        (["predict", "ARCHIVE", "-", "--output-file"], "out.jsonl"),
        (["predict", "ARCHIVE", "-", "--output-file"], "out.jsonl.gz"),
        (["evaluate", "ARCHIVE", "train", "--output-file"], "metrics.json"),
        (["trace", "ARCHIVE", "train", "--output-file"], "trace.npz"),
    ],
)
def test_an_output_that_cannot_be_written_whole(trained: Path, tmp_path: Path, command: list[str], output: str) -> None:
    path = tmp_path / output
    arguments = [str(trained / "model.tar.gz") if word == "ARCHIVE" else word for word in command]
    with file_size_limit(0):
        # The archive is unpacked in the temporary folder: a run's directory needs no room there.
        arguments[1] = str(trained)
        result = run(*arguments, str(path), stdin="the film\n" * 50, check=False)
    assert_one_line(result, path)
    assert not list(tmp_path.iterdir())


def test_training_goes_on_once_there_is_room(
    tiny_environment: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    for name, value in tiny_environment.items():
        monkeypatch.setenv(name, value)
    overrides = {"trainer.num_epochs": 2, "trainer.cuda_device": -1, "dataset_reader.max_instances": 40}
    command = ["train", str(CONFIGS / "sst2_beem.jsonnet"), "-o", json.dumps(overrides), "-s"]
    run(*command, str(tmp_path / "whole"))
    with file_size_limit(60_000):
        result = run(*command, str(tmp_path / "run"), check=False)
    assert_one_line(result, tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*.tmp"))
    run(*command, str(tmp_path / "run"), "--recover")
    whole, again = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "run"))
    for metrics in (whole, again):
        for key in [key for key in metrics if "duration" in key or "memory" in key]:
            del metrics[key]
    assert again == whole


def test_a_full_standard_output(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        status = main(argv=["evaluate", str(trained), "train"])
    assert status == 1
    assert "error: standard output: No space left on device" in capsys.readouterr().err


def test_no_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("beem_plugin.predictors.predict.archive_of", fail)
    assert_one_line(run("predict", str(trained), "-", check=False), "out of memory")


def test_what_killed_runs_leave_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    for name in (".meta.json.abc.tmp", ".metrics_epoch_1.json.xyz.tmp", ".other", "kept.tmp"):
        (tmp_path / name).write_text("half")
    with atomic_write(tmp_path / "meta.json") as file:
        file.write("whole")
        assert len(list(tmp_path.glob(".meta.json.*.tmp"))) == 1
        remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other", "kept.tmp", "meta.json"]
    with open(tmp_path / ".busy.json.a.tmp", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
        assert (tmp_path / ".busy.json.a.tmp").exists()


def test_the_folders_of_killed_runs_are_removed_and_those_in_use_stay(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = [tmp_path / name for name in ("another", "beem_plugin-0.1", "beem_plugin-scratch-of-mine")]
    for other in others:
        other.mkdir()
    with scratch_folder() as outer:
        left = tmp_path / f"{outer.name[:-8]}abcd_123"
        left.mkdir()
        (left / "weights").write_text("half")
        with scratch_folder() as inner:
            assert sorted(tmp_path.iterdir()) == sorted([*others, outer, inner])
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_errors_of_libraries_in_rust_name_the_path(encoder: TextEncoder, tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="File too large") as caught,
        write_errors_named(tmp_path / "tokenizer"),
        file_size_limit(100),
    ):
        encoder.tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "tokenizer")


def test_a_table_into_a_closed_pipe_raises_what_main_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            Table([Column("a")], [[1.0]]).print()
        # Closing the file writes its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())


def test_a_run_that_was_killed_while_it_wrote_its_config_can_start_again(tmp_path: Path) -> None:
    training = TrainingRun(Training("key", tmp_path, {}), 1)
    training.serialization_dir.mkdir(parents=True)
    (training.serialization_dir / ".config.json.abc.tmp").write_text("{")
    assert not training.is_begun
    check_serialization_dir(training.serialization_dir, {}, recover=False, force=False)
    assert not list(training.serialization_dir.iterdir())


def test_predictions_into_a_pipe_and_a_link(trained: Path, tmp_path: Path) -> None:
    command = ["predict", str(trained), "-", "--output-file"]
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.jsonl", tmp_path / "target.jsonl"
    os.mkfifo(pipe)
    target.write_text("old")
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run(*command, str(pipe), stdin="the film\n")
        assert os.read(reader, 4096).count(b"\n") == 1 and pipe.is_fifo()
    finally:
        os.close(reader)
    run(*command, str(link), stdin="the film\n")
    assert link.is_symlink() and len(target.read_text().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "pipe", "target.jsonl"]


def test_a_run_that_was_put_aside_by_a_killed_one_is_restored(tmp_path: Path) -> None:
    directory, aside = tmp_path / "run", tmp_path / ".run.replaced"
    for folder, text in ((directory, "new"), (aside, "old")):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"{text}": 1}}')
    (aside / "best.th").write_bytes(b"weights")
    with pytest.raises(ConfigurationError, match="is not empty"):
        check_serialization_dir(directory, {}, recover=False, force=False)
    assert (directory / "best.th").exists() and not aside.exists()
    with pytest.raises(KeyError), ExitStack() as held, prepared_directory(directory, False, True, held):
        assert aside.exists()
        raise KeyError
    assert (directory / "best.th").exists()
    with ExitStack() as held, prepared_directory(directory, False, True, held):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"] and not list(directory.iterdir())


def test_a_directory_in_which_a_run_trains_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with ExitStack() as held:
        with prepared_directory(directory, False, False, held):
            (directory / "config.json").write_text("{}")
        for recover, force in ((True, False), (False, True)):
            with pytest.raises(ConfigurationError, match="another process trains in it"):
                check_serialization_dir(directory, {}, recover, force)
    check_serialization_dir(directory, {}, recover=True, force=False)
