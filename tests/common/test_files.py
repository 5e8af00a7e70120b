from __future__ import annotations

import gzip
import json
import os
import stat
import threading

import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.text_input import open_text


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as file:
        file.write("é\n")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path, "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_of_a_replaced_file_are_kept(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_json(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    write_json(path, {"a": 1})
    reader.join(timeout=60)
    assert json.loads(read[0]) == {"a": 1} and stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_where_it_did(tmp_path):
    target, link = tmp_path / "there" / "a.json", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for number in (1, 2):  # a target that is new, and one that is there
        write_json(link, number)
        assert link.is_symlink() and json.loads(target.read_text()) == number


@pytest.mark.parametrize("path", ["file/a.json", "file/deeper/a.json"])
def test_a_file_in_the_way_of_a_directory(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=f"{path}: {tmp_path}/file is a file, a directory is needed"):
        write_json(tmp_path / path, 1)


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_text_gzipped_or_not_and_with_a_byte_order_mark(tmp_path):
    plain, zipped = tmp_path / "a.txt", tmp_path / "b.anything"
    plain.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    zipped.write_bytes(gzip.compress(b"one\ntwo\n"))
    for path in (plain, zipped):
        with open_text(path) as file:
            assert list(file) == ["one\n", "two\n"]


def test_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    with open_text(tmp_path / "empty") as file:
        assert file.read() == ""


@pytest.mark.parametrize("content", [b"caf\xe9", gzip.compress(b"one\n" * 1000, mtime=0)[:-12]])
def test_unreadable_text_is_a_data_error(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError, match=str(path)), open_text(path) as file:
        file.read()


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="none: No such file"), open_text(tmp_path / "none"):
        pass
