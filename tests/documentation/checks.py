"""How a block is tested: it runs in a folder of small models and data, or else is checked against the code."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import tango.common

from beem_plugin.commands.subcommand import parse_args
from beem_plugin.common.construct import check
from beem_plugin.common.params import evaluate_document, parse_overrides
from beem_plugin.comparison.ablation.variant_files import read_variants
from beem_plugin.training.train_model import TrainModel
from tests.documentation.blocks import Block, blocks_of, commands_of
from tests.tiny_project import ROOT, run, sentences

TINY = json.dumps({"trainer.num_epochs": 1, "trainer.callbacks.0.batch_size": 64})
QUICK = {
    "train": ["-o", TINY, "--force"],
    "find-lr": ["--num-batches", "12"],
    "new-config": ["--force"],
}
"""Options added to commands."""
ONLY_PARSED = {"ablate", "benchmark", "export", "serve"}
"""Commands that serve or take seconds on the smallest model, and have tests of their own."""
SMALL_BENCHMARK = '.benchmark(texts, batch_sizes=[8], engines=["compaction"], repeats=1)'
OTHER_PROGRAMS = {"curl", "docker", "git", "cd", "pytest", "mkdocs"}
EXTRAS = configparser.ConfigParser()
EXTRAS.read(ROOT / "setup.cfg")
TEXTS = [text for text, _ in sentences(12, seed=4)]


def registry(name: str) -> type:
    return next(base for base in tango.common.Registrable._registry if base.__name__ == name)


def script_text(path: Path) -> str:
    """A script, and the module of the package that its arguments are parsed in."""
    text = path.read_text(encoding="utf-8")
    for module in re.findall(r"^from (beem_plugin[.\w]*) import .*\bparse\b", text, re.MULTILINE):
        text += (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return text


class PageRun:
    """The blocks of one page, in order, in the working directory; commands in `done` have been run there before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, done: list[list[str]]) -> None:
        self.monkeypatch, self.done = monkeypatch, list(done)
        data = datasets.Dataset.from_dict({"title": TEXTS})
        self.names: dict[str, Any] = {"texts": TEXTS, "labels": ["billing", "login"] * 6, "data": data}

    def run(self, page: Path) -> None:
        for block in blocks_of(page):
            self.check(block)

    def check(self, block: Block) -> None:
        try:
            getattr(self, block.language, self.output)(block)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}\n{block.code}") from error

    def output(self, block: Block) -> None:
        """Output of commands, drawings and files of other programs are not checked."""

    def bash(self, block: Block) -> None:
        for words in commands_of(block.code):
            while re.fullmatch(r"[A-Z_]+=.*|export", words[0]):
                if words[0] == "export":
                    self.monkeypatch.setenv(*words[1].split("=", 1))
                    words = words[1:]
                words = words[1:]
                if not words:
                    break
            else:
                self.command(words, "parse" in block.options)

    def command(self, words: list[str], only_parse: bool) -> None:
        if words[0] in ("torchrun", "accelerate"):
            words = words[words.index("-m") + 1 :]
        if words[:2] == ["python", "-m"]:
            words = words[2:]
        if words[0] in ("allennlp", "beem", "beem_plugin"):
            self.allennlp(words[1:], only_parse)
        elif words[0] == "pip":
            for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)):
                assert set(extra.split(",")) <= set(EXTRAS["options.extras_require"]), f"no extra {extra}"
        elif words[0] == "python" or "/" in words[0]:
            name, *arguments = words[1:] if words[0] == "python" else words
            text = script_text(ROOT / name)
            for option in (word.partition("=")[0] for word in arguments if word.startswith("--")):
                assert f'"{option}"' in text, f"{name} has no option {option}"
        else:
            assert words[0] in OTHER_PROGRAMS, f"unknown command {words[0]!r}"

    def allennlp(self, arguments: list[str], only_parse: bool) -> None:
        args = parse_args("allennlp", arguments)
        assert args is not None
        if getattr(args, "overrides", ""):
            parse_overrides(args.overrides)
        if only_parse or arguments[0] in ONLY_PARSED or arguments in self.done:
            return
        self.done.append(arguments)
        result = run(*arguments, *([] if "--dry-run" in arguments else QUICK.get(arguments[0], [])), check=False)
        allowed = (0, 1) if arguments[0] == "diff-config" else (0,)  # 1: the configs differ
        assert result.returncode in allowed and "error:" not in result.stderr, result.stderr[-2000:]

    def python(self, block: Block) -> None:
        tree = ast.parse(block.code.replace(".benchmark(texts)", SMALL_BENCHMARK))
        if "file" in block.options:
            path = write_file(block)
            importlib.invalidate_caches()
            importlib.import_module(".".join(path.with_suffix("").parts))
        elif "parse" in block.options:
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("beem_plugin"):
                    for alias in node.names:
                        getattr(importlib.import_module(node.module or ""), alias.name)
        else:
            exec(compile(tree, block.place, "exec"), self.names)

    def jsonnet(self, block: Block) -> None:
        file = write_file(block) if "file" in block.options else Path("block.jsonnet")
        base = f"(import '{block.options['merge']}') + " if "merge" in block.options else ""
        file.write_text(base + block.code, encoding="utf-8")
        content = evaluate_document(file)
        if "build" in block.options:
            check(registry(block.options["build"]), content)
        elif "variants" in block.options:
            for variant in read_variants(evaluate_document(block.options["variants"]), content):
                check_config(variant.config)
        elif isinstance(content, dict) and {"model", "dataset_reader"} <= set(content):
            check_config(content)
        else:
            assert "parse" in block.options, "no whole config: say `merge`, `build`, `variants` or `parse`"

    def json(self, block: Block) -> None:
        found = json.loads(block.code)
        if "keys" in block.options:
            with open(block.options["keys"], encoding="utf-8") as file:
                expected = json.loads(file.readline())
            assert set(found) <= set(expected), f"{sorted(found)} are not all in {sorted(expected)}"


def check_config(config: dict[str, Any]) -> None:
    """Keys and types of a whole config."""
    check(TrainModel, {key: value for key, value in config.items() if not key.endswith("_seed")}, partial=True)


def write_file(block: Block) -> Path:
    path = Path(block.options["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code, encoding="utf-8")
    return path
