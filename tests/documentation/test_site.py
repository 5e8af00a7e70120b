"""The documentation site builds without a warning and has a section for every component and command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tango.common
from mkdocs.commands.build import build
from mkdocs.config import load_config

import beem_plugin.components  # noqa: F401
from beem_plugin.commands import Subcommand
from tests.tiny_project import ROOT


def test_the_site_builds_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    commands = (tmp_path / "commands" / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'<h2 id="([\w-]+)"', commands)) >= {
        name for name in Subcommand.list_available() if Subcommand.by_name(name).__module__.startswith("beem_plugin")
    }
    policies = (tmp_path / "components" / "exit_policy" / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'<h2 id="([\w-]+)"', policies))
    registered = tango.common.Registrable._registry
    base = next(base for base in registered if base.__name__ == "ExitPolicy")
    ours = {name for name, (cls, _) in registered[base].items() if cls.__module__.startswith("beem_plugin")}
    assert ours <= named
    assert "on_disagreement" in policies and "The default of" in policies
    assert "EarlyExitPipeline" in (tmp_path / "python" / "index.html").read_text(encoding="utf-8")
