from __future__ import annotations

import pytest

from beem_plugin.commands.train import choose_serialization_dir
from beem_plugin.common.errors import ConfigurationError


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def test_runs_are_numbered(working_directory):
    assert str(choose_serialization_dir("configs/rte_beem.jsonnet")) == "runs/rte_beem"
    for name in ("rte_beem", "rte_beem_2"):
        (working_directory / "runs" / name).mkdir(parents=True)
        (working_directory / "runs" / name / "config.json").touch()
    assert str(choose_serialization_dir("configs/rte_beem.jsonnet")) == "runs/rte_beem_3"


def test_an_empty_directory_is_taken(working_directory):
    (working_directory / "runs" / "a").mkdir(parents=True)
    assert str(choose_serialization_dir("a.jsonnet")) == "runs/a"


def test_recovery_needs_a_directory(working_directory):
    (working_directory / "runs" / "a").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="--recover needs -s DIR.* found: runs/a"):
        choose_serialization_dir("a.jsonnet", recover=True)


def test_several_processes_need_a_directory(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="several processes needs -s DIR"):
        choose_serialization_dir("a.jsonnet")
