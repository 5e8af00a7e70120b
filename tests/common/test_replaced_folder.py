from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import replaced_folder, restore_folder


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    return folder


def test_the_new_folder_takes_the_place_of_the_old_one(folder: Path) -> None:
    with replaced_folder(folder) as new:
        (new / "sub").mkdir()
        (new / "new.txt").write_text("new")
        assert content(folder) == {"old.txt": "old"}
        with pytest.raises(ConfigurationError, match="another process writes it"), replaced_folder(folder):
            pass
    assert sorted(path.name for path in folder.iterdir()) == ["new.txt", "sub"]
    assert list(folder.parent.iterdir()) == [folder]


def test_after_an_error_or_a_kill_the_folder_is_as_before(folder: Path) -> None:
    with pytest.raises(KeyError), replaced_folder(folder):
        raise KeyError
    assert content(folder) == {"old.txt": "old"} and list(folder.parent.iterdir()) == [folder]
    pid = os.fork()
    if pid == 0:
        with replaced_folder(folder) as new:
            (new / "half.txt").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert content(folder) == {"old.txt": "old"}
    with replaced_folder(folder) as new:
        (new / "new.txt").write_text("new")
    assert content(folder) == {"new.txt": "new"} and list(folder.parent.iterdir()) == [folder]


def test_a_kill_between_the_two_steps_is_undone(folder: Path) -> None:
    folder.rename(folder.with_name(".export.old"))
    restore_folder(folder)
    assert content(folder) == {"old.txt": "old"}
    restore_folder(folder)


def test_a_folder_in_which_a_disk_is_mounted_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()

    def busy(self: Path, target: Path) -> Path:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    with replaced_folder(folder) as new:
        (new / "new.txt").write_text("new")
    assert content(folder) == {"new.txt": "new"} and list(tmp_path.iterdir()) == [folder]
