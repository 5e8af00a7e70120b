"""The code blocks of the README and of the pages in docs/, and the comments that say how they are tested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tiny_project import ROOT

README = ROOT / "README.md"
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"bash", "python", "jsonnet", "json", "text", "mermaid", "yaml", "dockerfile"}
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"<!-- test: (?P<kind>names|messages) ?(?P<base>\w*) -->\n\n\|.*\n\|[-| ]*\n(?P<rows>(?:\|.*\n)+)")
COMMENT = re.compile(r"<!-- test: (?P<text>[^>]*) -->\s*$")
KEYS = ("parse", "file", "merge", "build", "variants", "keys")


@dataclass
class Block:
    """
    One fenced block, its language, and the options of a comment `<!-- test: key value; key value -->` before it:
    `parse` checks without running (the value says why), `file NAME` writes the block to a file of the page's folder,
    `merge NAME` checks a part of a config merged into that file, `build CLASS` checks a block of a config,
    `variants NAME` checks the variants of an ablation with that base, `keys NAME` compares the keys with those of the
    first line of a file.
    """

    page: Path
    line: int
    language: str
    code: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        line = before.count("\n") + 1
        comment = COMMENT.search(before)
        options = dict(part.strip().partition(" ")[::2] for part in comment["text"].split(";")) if comment else {}
        place = f"{page.relative_to(ROOT)}:{line}"
        assert set(options) <= set(KEYS), f"{place}: found options {sorted(options)}, allowed: {KEYS}"
        language = match[2] or "bash"
        assert language in LANGUAGES, f"{place}: found language {language!r}, allowed: {sorted(LANGUAGES)}"
        code = "\n".join(row.removeprefix(match[1]) for row in match[3].splitlines())
        found.append(Block(page, line, language, code + "\n", options))
    return found


def commands_of(code: str) -> Iterator[list[str]]:
    """The commands of a shell block as lists of words, without comments; `VAR=value` in front stays."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def tables_of(page: Path) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Tables behind `<!-- test: names CLASS -->` or `<!-- test: messages -->`: the code in each row's first cell."""
    for match in TABLE.finditer(page.read_text(encoding="utf-8")):
        yield (
            match["kind"],
            match["base"],
            [re.findall(r"`(.+?)`", row.split("|")[1]) for row in match["rows"].splitlines()],
        )
