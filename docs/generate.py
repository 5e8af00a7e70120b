"""
Pages that mkdocs makes from the code: one for each kind of component, from the registry and the docstrings; the
commands, from their parsers; and the first page, which is the README. A hook of mkdocs (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tango.common
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import beem_plugin.components  # noqa: F401
from beem_plugin.commands.subcommand import all_commands
from beem_plugin.common.plugins import import_deferred
from beem_plugin.common.recipes import constructor_of, signature_of
from beem_plugin.common.registry import FromParams
from beem_plugin.common.values import EMPTY
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^# (Parameters|Raises|Returns)$", re.MULTILINE)
ENTRY = re.compile(r"^(?P<names>[\w*][\w, *]*?)(?: : (?P<type>.*?))?(?:,? \(?optional\b,? ?(?P<rest>.*))?$")
OTHER_BLOCKS = "other_blocks"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the generated pages into the navigation, and pages that it does not name."""
    nav: Any = config.nav
    pages = sorted(str(path.relative_to(config.docs_dir)) for path in Path(config.docs_dir).rglob("*.md"))
    nav[3:3] = [page for page in pages if f"'{page}'" not in str(nav)]  # behind "Your own data"
    for section in nav:
        if "Components" in section:
            section["Components"] = ["components/index.md", *(f"components/{name}.md" for name in components())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"index.md": first_page(), "commands.md": commands_page(), "components/index.md": index_page()}
    pages |= {f"components/{name}.md": page for name, page in components().items()}
    generated = (File.generated(config, path, content=content) for path, content in pages.items())
    return Files([*files, *generated])


def first_page() -> str:
    """The README, with links as seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^]]+)\]\((?!https?:|[\w/]+\.(?:md|svg))[^)]*\)|\[(CONTRIBUTING\.md)\]\([^)]*\)", r"\1\2", text)


def commands_page() -> str:
    parts = ["# Commands\n\n`allennlp COMMAND`, also `beem COMMAND` and `python -m beem_plugin COMMAND`.\n"]
    for name, parser in sorted(all_commands().items()):
        parts.append(f"## {name}\n\n{escaped(parser.description or '')}\n\n```text\n{parser.format_usage()}```\n")
        rows = [(flags_of(action), escaped(action.help or "")) for action in parser._actions if action.dest != "help"]
        parts.append("| argument | |\n|---|---|\n" + "".join(f"| {flags} | {help} |\n" for flags, help in rows))
    return "\n".join(parts)


def flags_of(action: argparse.Action) -> str:
    value = action.metavar or (("{" + ",".join(map(str, action.choices)) + "}") if action.choices else None)
    value = str(value or action.dest.upper()) if action.nargs != 0 else ""
    if not action.option_strings:
        return code(str(action.metavar or action.dest))
    return ", ".join(code(f"{option} {value}".strip()) for option in action.option_strings)


@functools.cache
def registries() -> dict[str, tuple[type, dict[str, type]]]:
    """Page -> base class, and its registered classes by name, the default first."""
    import_deferred()
    found = {}
    for base, entries in tango.common.Registrable._registry.items():
        if entries and base.__module__.startswith(("beem_plugin", "allennlp_light")):
            names = sorted(entries, key=lambda name: (name != base.default_implementation, name))
            found[snake(base.__name__)] = base, {name: entries[name][0] for name in names}
    return dict(sorted(found.items()))


def index_page() -> str:
    lines = ["# Components", "", "The values of `type` in a config, by kind.", "", "| kind | types |", "|---|---|"]
    for page, (base, entries) in registries().items():
        names = ", ".join(f"[`{name}`]({page}.md#{name})" for name in entries)
        lines.append(f"| [{base.__name__}]({page}.md) | {names} |")
    lines.append(f"| [other blocks]({OTHER_BLOCKS}.md) | blocks without a `type` |")
    return "\n".join(lines) + "\n"


@functools.cache
def components() -> dict[str, str]:
    """The pages by name."""
    pages = {}
    users = users_of()
    for page, (base, entries) in registries().items():
        parts = [f"# {base.__name__}\n", description(base)]
        if users.get(base):
            parts.append(f"In a config: {', '.join(sorted(users[base]))}.\n")
        for name, cls in entries.items():
            default = next(iter(entries.values()))
            parts += [f"## {name}\n", component(cls, default, name == base.default_implementation)]
        pages[page] = "\n".join(parts)
    parts = ["# Other blocks\n\nBlocks of a config without a `type`.\n"]
    for cls in sorted((cls for cls in users if snake(cls.__name__) not in pages), key=lambda cls: cls.__name__):
        parts += [
            f"## {cls.__name__}\n",
            f"In a config: {', '.join(sorted(users[cls]))}.\n",
            component(cls, GradientDescentTrainer),
        ]
    return {**pages, OTHER_BLOCKS: "\n".join(parts)}


def component(cls: Any, fallback: Any, is_default: bool = False) -> str:
    """Class, description, and the table of keys; `fallback` documents keys that `cls` only passes on."""
    first = f"`{cls.__module__}.{cls.__qualname__}`" + ", the default" * is_default + "\n"
    return "\n".join([first, description(cls), keys_table(cls, fallback)])


def keys_table(cls: Any, fallback: Any) -> str:
    documented = parameters(fallback) | {
        name: entry for one in reversed(mro(cls)) for name, entry in parameters(one).items()
    }
    own = parameters(cls)
    rows = []
    for name, argument in config_keys(cls).items():
        kind, default, text = own.get(name) or documented.get(name) or ("", "", "")
        if text.startswith("See `"):
            inherited = [parameters(base).get(name) for base in mro(cls)[1:]]
            better = next((entry for entry in inherited if entry and not entry[2].startswith("See `")), None)
            more = text.partition(";")[2].strip()
            if better:
                more = more[:1].upper() + more[1:] if f"`{name}`" in more else ""
                kind, text = kind or better[0], f"{better[2]} {more}".strip()
        kind = kind or code(annotation(argument.annotation))
        if not default and argument.default is not EMPTY:
            default = code(repr(argument.default))
        rows.append(f"| `{name}` | {cell(linked(kind))} | {cell(default) or 'required'} | {cell(text)} |")
    if not rows:
        return "No further keys.\n"
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows]) + "\n"


def config_keys(cls: Any) -> dict[str, inspect.Parameter]:
    function = constructor_of(cls) if inspect.isclass(cls) else cls
    return dict(signature_of(function, cls if inspect.isclass(cls) else None).arguments)


def mro(cls: Any) -> list[type]:
    return [base for base in getattr(cls, "__mro__", (cls,)) if base.__module__.startswith("beem_plugin")]


def sections(cls: Any) -> dict[str, str]:
    """The parts of a docstring by their title; the description's is ""."""
    text = inspect.cleandoc(cls.__doc__ or "") if cls.__module__.startswith("beem_plugin") else ""
    first, *rest = SECTION.split(text)
    return {"": first, **dict(zip(rest[::2], rest[1::2]))}


def description(cls: Any) -> str:
    return re.sub(r"Registered as an? [^.]*\.?\n?", "", sections(cls)[""]).strip() + "\n"


def parameters(cls: Any) -> dict[str, tuple[str, str, str]]:
    """Type, default and meaning of the documented parameters by name."""
    found = {}
    for head, text in entries_of(sections(cls).get("Parameters", "")):
        match = ENTRY.match(head)
        if match is None:
            continue
        default = re.sub(r"^\(|\)$", "", match["rest"] or "").removeprefix("default").strip(" =:")
        for name in match["names"].replace("*", "").split(", "):
            found[name] = (match["type"] or "", default, text)
    return found


def entries_of(section: str) -> Iterator[tuple[str, str]]:
    """Unindented heads, and the indented text below each."""
    head, lines = "", []
    for line in [*section.strip("\n").splitlines(), "end"]:
        if line and not line.startswith(" "):
            if head:
                yield head, " ".join(" ".join(lines).split())
            head, lines = line, []
        else:
            lines.append(line)


def users_of() -> dict[type, set[str]]:
    """The keys of components that take an object of a class of ours, by class."""
    pending = [(name, cls) for _, entries in registries().values() for name, cls in entries.items()]
    found, seen = {}, set()
    while pending:
        name, cls = pending.pop()
        for key, argument in config_keys(cls).items():
            for inner in classes_in(argument.annotation):
                is_base = inner in tango.common.Registrable._registry
                if not (is_base or issubclass(inner, FromParams)) or not inner.__module__.startswith("beem_plugin"):
                    continue
                found.setdefault(inner, set()).add(f"`{key}` of `{name}`")
                if not is_base and inner not in seen:
                    seen.add(inner)
                    pending.append((inner.__name__, inner))
    return found


def classes_in(kind: Any) -> Iterator[type]:
    if inspect.isclass(kind) and not typing.get_args(kind):
        yield kind
    for part in typing.get_args(kind):
        yield from classes_in(part)


def linked(kind: str) -> str:
    """Names of kinds as links to their pages."""
    pages = registries()
    return re.sub(
        r"`(\w+)`", lambda match: f"[`{match[1]}`]({page}.md)" if (page := snake(match[1])) in pages else match[0], kind
    )


def annotation(kind: Any) -> str:
    if kind is EMPTY:
        return "any"
    plain = inspect.isclass(kind) and not typing.get_args(kind)
    text = re.sub(r"\b(?:\w+\.)+", "", kind.__name__ if plain else str(kind))
    text = re.sub(r"Lazy\[(\w+)\]", r"\1", text)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def code(text: str) -> str:
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def escaped(text: str) -> str:
    """Help texts are no Markdown."""
    return re.sub(r"([\\*_<>\[\]|{}])", r"\\\1", re.sub(r"%\((\w+)\)s", "", text).replace("%%", "%"))


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
