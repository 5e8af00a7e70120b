"""The command line's parser: help that states defaults, subcommands from the registry and from plugins."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from beem_plugin import __version__
from beem_plugin.commands.subcommand import Subcommand
from beem_plugin.common.plugins import import_plugins


class ArgumentParserWithDefaults(argparse.ArgumentParser):
    """A parser whose help names the default of every option that takes a value and has one."""

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        action = super().add_argument(*args, **kwargs)
        has_default = action.nargs != 0 and action.default not in (None, "", argparse.SUPPRESS, [])
        if has_default and action.option_strings and isinstance(action.help, str):
            default = str(action.default).replace("%", "%%")
            action.help += f" (default = {default})"
        return action


def parse_args(prog: str | None = None, argv: Sequence[str] | None = None) -> argparse.Namespace | None:
    """
    The parsed arguments, `func` (what to run) and `subcommand` among them; `None` if there was no subcommand, and
    help was printed. Plugins are only loaded if they can matter: for help, and for a subcommand that is not ours.
    """
    parser = ArgumentParserWithDefaults(
        prog=prog, description="Train, calibrate, evaluate and use early-exit transformers."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    added: set[str] = set()
    _add_subcommands(subparsers, added)
    if argv is None:
        import sys

        argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help") or (argv[0] not in added and argv[0] != "--version"):
        import_plugins()
        _add_subcommands(subparsers, added)
    args = parser.parse_args(argv)
    if not hasattr(args, "func"):
        parser.print_help()
        return None
    return args


def all_commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of this package's subcommands by name."""
    subparsers = ArgumentParserWithDefaults(prog="allennlp").add_subparsers()
    _add_subcommands(subparsers, set())
    return dict(subparsers.choices)


def _add_subcommands(subparsers: argparse._SubParsersAction[Any], added: set[str]) -> None:
    for name in Subcommand.list_available():
        if name in added:
            continue
        subcommand = Subcommand.by_name(name)(name)
        subparser = subcommand.add_subparser(subparsers)
        subparser.set_defaults(subcommand=subcommand)
        if subcommand.requires_plugins:
            subparser.add_argument(
                "--include-package",
                action="append",
                default=[],
                metavar="NAME",
                help="a package to import with all its submodules, for what it registers; repeatable",
            )
        added.add(name)
