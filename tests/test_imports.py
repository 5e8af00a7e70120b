"""Imports point downwards, and no modules import each other; imports in functions and for types count."""

from __future__ import annotations

import ast
import functools
import importlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import beem_plugin

ROOT = Path(beem_plugin.__file__).parent

ORDER = [
    ["common"],
    ["data", "kernels"],
    ["dataset_readers", "backbones"],
    ["exits"],
    ["calibration"],
    ["objectives"],
    ["execution"],
    ["decoding"],
    ["models"],
    ["archived_config"],
    ["archival"],
    ["rendering"],
    ["tasks"],
    ["predictors", "training"],
    ["evaluation"],
    ["comparison"],
    ["publish"],
    ["pipeline"],
    ["fine_tuning"],
    ["classifier"],
    ["serving"],
    ["components"],
    ["commands"],
    ["__main__"],
    ["training_process"],
]
"""Packages and modules of `beem_plugin` from the bottom up; those on one level are independent of each other."""


def names() -> dict[str, Path]:
    """The modules of the package, and their files."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ["beem_plugin", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = names()


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES and node.level == 0:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inside)
        elif isinstance(node, ast.Constant) and str(node.value).rpartition(":")[0] in MODULES:  # `Subcommand.runs`
            yield str(node.value).rpartition(":")[0]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"


@functools.cache
def imports() -> dict[str, list[str]]:
    """What each module of the package imports from it."""
    return {name: sorted(set(imported(path)) - {name, "beem_plugin"}) for name, path in MODULES.items()}


def test_imports_point_downwards() -> None:
    level = {f"beem_plugin.{name}": number for number, names in enumerate(ORDER) for name in names}

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    upwards = {
        (module, other)
        for module, others in imports().items()
        for other in others
        if module != "beem_plugin" and room(module) != room(other) and level[room(module)] <= level[room(other)]
    }
    assert upwards == set(), sorted(upwards)


def test_no_modules_import_each_other() -> None:
    assert circles(imports()) == []


SCRIPTS = [
    path for path in (ROOT.parent / "scripts").iterdir() if path.is_file() and "python" in path.open().readline()
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_scripts_import_exists(path: Path) -> None:
    """No type checker sees the scripts without an ending; imports in their functions may run on GPUs alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    handlers = [one for one in ast.walk(tree) if isinstance(one, ast.ExceptHandler)]  # other releases' names
    optional = {id(one) for handler in handlers for one in ast.walk(handler)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("beem_plugin") and id(node) not in optional:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or f"{node.module}.{alias.name}" in MODULES, alias.name


def test_circles_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}) == [["b", "c"]]


def circles(imports: dict[str, list[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: dict[str, list[str]] = defaultdict(list)

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == index[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            found[module] = sorted(members)

    for module in imports:
        if module not in index:
            visit(module)
    return [members for members in found.values() if len(members) > 1]
