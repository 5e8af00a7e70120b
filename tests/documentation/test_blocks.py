"""Every code block, command and table of names in the README and docs/ runs, or is checked against the code."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from html import escape
from pathlib import Path

import pytest
import tango.common

import beem_plugin.components  # noqa: F401
from beem_plugin.commands.subcommand import all_commands
from beem_plugin.common.params import load_config_dict
from tests.documentation.blocks import PAGES, README, Block, tables_of
from tests.documentation.checks import PageRun, registry, script_text
from tests.tiny_project import ROOT, sentences, write_backbone

# Without the quotes between the parts of a string.
SOURCE = re.sub(
    r'"\s*f?"', "", "".join(path.read_text(encoding="utf-8") for path in (ROOT / "beem_plugin").rglob("*.py"))
).replace("\\", "")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """
    A folder in which the README's blocks have run, beside data and an encoder under its name in the hub; and the
    commands that have been run.
    """
    folder = tmp_path_factory.mktemp("documentation")
    write_backbone(folder / "microsoft" / "mpnet-base", layers=12)
    for name, count in (("tickets.csv", 80), ("new_tickets.csv", 12)):
        rows = [f"{text},{('billing', 'login')[label]}" for text, label in sentences(count, seed=3)]
        (folder / name).write_text("\n".join(["title,category", *rows]) + "\n")
    for name in ("training_configs", "docs", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        readme = PageRun(monkeypatch, [])
        readme.run(README)
    return folder, readme.done


def test_the_readme_trains_predicts_and_saves(workplace: tuple[Path, list[list[str]]]) -> None:
    folder, _ = workplace
    first = json.loads((folder / "predictions.jsonl").read_text().splitlines()[0])
    assert {"label", "probabilities", "exit"} <= set(first)
    for made in ("runs/my_data/model.tar.gz", "fast.tar.gz", "my_model/README.md"):
        assert (folder / made).exists()


@every_page
def test_the_blocks_of_a_page(
    page: Path, workplace: tuple[Path, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, done = workplace
    if page == README:
        return  # its blocks made the folder
    shutil.copytree(folder, tmp_path / "page", symlinks=True)
    monkeypatch.chdir(tmp_path / "page")
    monkeypatch.syspath_prepend(str(tmp_path / "page"))
    registered = {base: dict(names) for base, names in tango.common.Registrable._registry.items()}
    modules = set(sys.modules)
    PageRun(monkeypatch, done).run(page)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] == "my_rules":
            del sys.modules[name]
    for base, names in registered.items():  # what the page's own package has registered is taken back
        tango.common.Registrable._registry[base] = names


@pytest.mark.parametrize(
    ("language", "code", "options", "message"),
    [
        ("bash", "allennlp predict model.tar.gz in.csv --no-such-flag 3", {"parse": ""}, "SystemExit"),
        ("bash", "allennlp no-such-command", {"parse": ""}, "SystemExit"),
        ("bash", "scripts/test_all", {}, "FileNotFoundError"),
        ("bash", "scripts/plot_results --no-such-flag", {}, "has no option"),
        ("bash", "pip install beem_plugin[no_such_extra]", {}, "no extra"),
        ("python", "from beem_plugin.archival import no_such_name", {"parse": ""}, "no_such_name"),
        ("jsonnet", "{ trainer+: { no_such_key: 1 } }", {"merge": "base.json"}, "trainer.no_such_key"),
        ("jsonnet", "{ type: 'beem', weigths: 'cost' }", {"build": "ExitPolicy"}, "weigths"),
        ("jsonnet", "{ a: { 'model.objective.type': 'no_such' } }", {"variants": "base.json"}, "no_such"),
    ],
)
def test_what_does_not_exist_is_found(
    language: str, code: str, options: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config_dict(
        ROOT / "training_configs" / "rte_beem.jsonnet", ext_vars={"BEEM_BACKBONE": "", "GLUE_DIR": ""}
    )
    Path("base.json").write_text(json.dumps(config))
    with pytest.raises(AssertionError, match=message):
        PageRun(monkeypatch, []).check(Block(README, 1, language, code, options))


@every_page
def test_tables_name_what_exists(page: Path) -> None:
    for kind, base, rows in tables_of(page):
        for words in rows:
            if kind == "names":
                unknown = [word for word in words if word not in registry(base).list_available()]
            else:
                unknown = [part for word in words for part in word.split("...") if part.strip() not in SOURCE]
            assert words and not unknown, f"{page}: {unknown} not found in the code"


@every_page
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    commands = all_commands()
    options = {option for parser in commands.values() for option in parser._option_string_actions}
    scripts = "".join(script_text(path) for path in (ROOT / "scripts").iterdir() if path.is_file())
    options |= set(re.findall(r'"(--[a-z-]+)"', scripts)) | {"--strict", "--nproc_per_node", "--version"}
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        if not code.startswith(("--", "allennlp ", "beem ", "scripts/")) and code.partition(" ")[0] not in commands:
            continue
        unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*", code)) - options
        assert not unknown, f"{page}: `{code}`: no command has {unknown}"
        for name in re.findall(r"^(?:allennlp|beem) ([a-z][\w-]*)", code):
            assert name in commands, f"{page}: no command {name}"


def test_the_picture_and_the_tables_show_the_stored_figures() -> None:
    """After a change: scripts/plot_results docs/results/accuracy_speed.json docs/results/accuracy_speed.svg"""
    described = runpy.run_path(str(ROOT / "scripts" / "plot_results"))["described"]
    results = json.loads((ROOT / "docs/results/accuracy_speed.json").read_text(encoding="utf-8"))
    picture = (ROOT / "docs/results/accuracy_speed.svg").read_text(encoding="utf-8")
    assert f"<desc>{escape(described(results))}</desc>" in picture
    for series in results["series"]:
        row = " | ".join(f"{value} ± {error}" for _, value, error in series["points"])
        for page in (README, ROOT / "docs/results/accuracy.md"):
            assert row in page.read_text(encoding="utf-8").replace("**", ""), f"{page}: {row}"


def test_links_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (ROOT / target).exists(), target
