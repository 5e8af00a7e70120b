from __future__ import annotations

import logging
import os
import signal

import pytest

from beem_plugin.commands import SigTermReceived, sigterm_raises
from beem_plugin.common.logging import is_file_friendly, prepare_logging


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.delenv("ALLENNLP_DEBUG", raising=False)
    level = logging.getLogger().level
    yield
    from beem_plugin.common import logging as ours

    for handler in ours._installed:
        logging.getLogger().removeHandler(handler)
        handler.close()
    ours._installed.clear()
    ours._file_friendly = False
    logging.getLogger().setLevel(level)


def test_messages_go_to_the_run_and_to_standard_error(tmp_path, capsys):
    prepare_logging(tmp_path / "run")
    logging.getLogger("a").info("hello")
    assert "hello" in (tmp_path / "run" / "out.log").read_text()
    captured = capsys.readouterr()
    assert "hello" in captured.err and captured.out == ""


def test_a_second_call_replaces_the_first(tmp_path, capsys):
    prepare_logging(tmp_path / "one")
    prepare_logging(tmp_path / "two", file_friendly=True)
    logging.getLogger("a").info("hello")
    assert (tmp_path / "one" / "out.log").read_text() == ""
    assert capsys.readouterr().err.count("hello") == 1
    assert is_file_friendly()


def test_a_worker_keeps_to_its_own_file(tmp_path, capsys):
    prepare_logging(tmp_path, rank=1, world_size=2)
    logging.getLogger("a").info("hello")
    logging.getLogger("a").error("alas")
    assert "hello" in (tmp_path / "out_worker1.log").read_text()
    captured = capsys.readouterr().err
    assert "hello" not in captured and "alas" in captured


@pytest.mark.parametrize("name, level", [("warning", 30), ("DEBUG", 10), ("nonsense", 20)])
def test_the_level_comes_from_the_environment(monkeypatch, name, level):
    monkeypatch.setenv("ALLENNLP_LOG_LEVEL", name)
    prepare_logging()
    assert logging.getLogger().level == level
    monkeypatch.setenv("ALLENNLP_DEBUG", "1")
    prepare_logging()
    assert logging.getLogger().level == logging.DEBUG


def test_sigterm_is_an_exception_within_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SigTermReceived), sigterm_raises():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before
