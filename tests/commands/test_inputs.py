"""A path that does not exist is named before anything heavy is imported, by every command that reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from beem_plugin import commands
from beem_plugin.commands import Subcommand, main
from beem_plugin.common.outputs import listed

NO_ARCHIVE, NO_CONFIG, NO_TRACE = (
    "gone.tar.gz: no such archive",
    "config gone.jsonnet: no such file",
    "gone.npz: no such",
)
HERE = __file__
CALLS = {
    "train": (["gone.jsonnet"], NO_CONFIG),
    "find-lr": (["gone.jsonnet", "-s", "out"], NO_CONFIG),
    "build-vocab": (["gone.jsonnet", "out.tar.gz"], NO_CONFIG),
    "count-instances": (["gone.jsonnet"], NO_CONFIG),
    "ablate": ([HERE, "gone.jsonnet", "-s", "out"], NO_CONFIG),
    "worth-it": (["gone.jsonnet", "-s", "out"], NO_CONFIG),
    "predict": (["gone.tar.gz", HERE], NO_ARCHIVE),
    "predict ": ([HERE, "gone.csv"], "gone.csv: no such file"),
    "evaluate": (["gone.tar.gz", HERE], NO_ARCHIVE),
    "trace": ([HERE, "no/texts.csv", "--output-file", "t.npz"], "no/texts.csv: no such file"),
    "benchmark": ([HERE, "validation", "--weights-file", "gone.th"], "gone.th: no such weights file"),
    "calibrate": (["--trace", "gone.npz", "--policy", "beem"], NO_TRACE),
    "replay": ([HERE, "--policy", "beem", "--calibrate-on", "gone.npz"], NO_TRACE),
    "serve": (["gone.tar.gz"], NO_ARCHIVE),
    "export": ([HERE, "out", "--data", "no/a.tsv.gz[test]"], "no/a.tsv.gz: no such file"),
    "glue-submission": (["gone.tar.gz", "--output", "out"], NO_ARCHIVE),
    "push-to-hf": (["gone.tar.gz", "--repo-id", "a/b"], NO_ARCHIVE),
}


def no_imports(*arguments: object) -> None:
    raise AssertionError("components are imported")


@pytest.mark.parametrize("command", CALLS)
def test_a_missing_file_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "import_components", no_imports)
    arguments, message = CALLS[command]
    assert main("allennlp", [command.strip(), *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_every_command_that_imports_components_is_covered() -> None:
    own = {
        name for name in Subcommand.list_available() if Subcommand.by_name(name).__module__.startswith("beem_plugin.")
    }
    assert {name for name in own if Subcommand.by_name(name).requires_plugins} == {
        *map(str.strip, CALLS),
        "test-install",
    }


@pytest.mark.parametrize("source", ["validation", "train[fit]", "texts.csv", f"{HERE}[test]", "package:a/b.txt/c"])
def test_what_may_exist_is_left_to_the_reader(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "import_components", no_imports)
    for archive in (HERE, "owner/name"):
        with pytest.raises(AssertionError, match="components are imported"):
            main("allennlp", ["evaluate", archive, source])


def test_a_comma_in_the_name_of_a_file_separates_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a, b, c.csv").touch()
    assert listed("a, b, c.csv[test],dev, x.csv") == ["a, b, c.csv[test]", "dev", "x.csv"]
    assert listed("dev,a, b, c.csv") == ["dev", "a, b, c.csv"]
