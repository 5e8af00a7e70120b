"""What CONTRIBUTING.md says about files is true."""

from __future__ import annotations

import re

import pytest

from tests.test_imports import MODULES, imports
from tests.tiny_project import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("### The upper rooms") : TEXT.index("## A new component")]
WALKS = re.findall(r"^\| (`[a-z]+`[^|]*) \| (`commands/[^|]*) \|$", SECTION, re.MULTILINE)
PLACES = re.findall(r"`(\w+)`(?: and `(\w+)`)? (?:in|of) `([\w/]+\.py)`", SECTION)


def module(path: str) -> str:
    return f"beem_plugin.{path.removesuffix('.py').replace('/', '.')}"


@pytest.mark.parametrize(("command", "walk"), WALKS, ids=[command for command, _ in WALKS])
def test_a_command_passes_these_files(command: str, walk: str) -> None:
    stops = walk.split(", ")
    assert 5 <= len(stops) <= 12, command
    passed: list[str] = []
    for stop in stops:
        found = re.match(r"`([\w/]+)`", stop)
        if found is None:
            continue  # "an engine", "the policy"
        name = module(found[1])
        assert name in MODULES, name
        # Imported by one before it, or a registered subclass of one.
        reached = any(name in imports()[other] or other in imports()[name] for other in passed)
        assert reached or not passed, f"{command}: no file before it leads to {name}"
        passed.append(name)


def test_every_command_on_models_and_traces_has_a_walk() -> None:
    walked = {command.split("`")[1] for command, _ in WALKS}
    assert walked == {"evaluate", "trace", "benchmark", "calibrate", "replay", "ablate"}


def test_places_to_add_something_are_there() -> None:
    assert len(PLACES) >= 8
    for *names, path in PLACES:
        source = MODULES[module(path)].read_text(encoding="utf-8")
        for name in filter(None, names):
            assert re.search(rf"^(def |class )?{name}\b", source, re.MULTILINE), f"{path} has no {name}"
