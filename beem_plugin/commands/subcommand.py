"""Subcommands and their parser. Parsing comes first: a module of a subcommand imports argparse, not torch."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from beem_plugin import __version__
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.outputs import check_inputs
from beem_plugin.common.plugins import import_plugins

MAX_BATCH_SIZE = 1_000_000

S = TypeVar("S", bound="type[Subcommand]")


class Argument:
    """What a parser's `add_argument` is called with."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names, self.options = names, options


class Subcommand:
    """
    A subcommand of `allennlp`, registered with `@Subcommand.register("name")`. A plugin's subcommands are found through
    `.allennlp_plugins`, as parsing comes before `--include-package`.

    `requires_plugins` says whether it builds things from configs, so that components must be imported first;
    `only_predicts`, whether it neither trains nor computes gradients, so that much of transformers is not imported;
    `reads` names the arguments that `check_inputs` looks at; `error_status` is the exit status after an error.
    """

    help: str = ""
    """The line in the list of all subcommands."""
    requires_plugins: bool = True
    only_predicts: bool = False
    reads: tuple[str, ...] = ()
    arguments: Sequence[str | Argument | list[Argument]] = ()
    """A string names an argument of `SHARED`; a list holds alternatives, of which one is allowed."""
    runs: str = ""
    """`module:function` of the function that runs the parsed arguments; imported when it is called."""
    error_status: int = 1
    after_interrupt: str = ""
    """How an interrupted call goes on."""
    _registry: ClassVar[dict[str, type[Subcommand]]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def register(cls, name: str, exist_ok: bool = False) -> Callable[[S], S]:
        """
        # Parameters

        name : `str`
            What is typed after `allennlp`.
        exist_ok : `bool`, optional (default = `False`)
            Whether to replace the subcommand of that name.
        """

        def add(subcommand: S) -> S:
            taken = cls._registry.get(name)
            if taken is not None and not exist_ok:
                raise ConfigurationError(f"subcommand {name!r} is already registered, by {taken.__module__}")
            cls._registry[name] = subcommand
            return subcommand

        return add

    @classmethod
    def by_name(cls, name: str) -> type[Subcommand]:
        return cls._registry[name]

    @classmethod
    def list_available(cls) -> list[str]:
        return list(cls._registry)

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        """
        Adds a parser of its own, whose default `func` takes the parsed arguments, runs, and may return an exit status.
        A subclass defines this, or `help`, `arguments` (or `add_arguments`) and `runs` (or `run`); its docstring is the
        description.

        # Parameters

        parser : `argparse._SubParsersAction`
            What `ArgumentParser.add_subparsers` gave.
        """
        description = " ".join((self.__doc__ or "").split())
        subparser = parser.add_parser(self.name, description=description, help=self.help)
        self.add_arguments(subparser)
        subparser.set_defaults(func=self.run)
        return subparser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments to the subcommand's parser."""
        for given in self.arguments:
            target: Any = parser.add_mutually_exclusive_group() if isinstance(given, list) else parser
            for one in given if isinstance(given, list) else [SHARED[given] if isinstance(given, str) else given]:
                target.add_argument(*one.names, **one.options)

    def check(self, args: argparse.Namespace) -> None:
        """Raises an error for wrong paths, before components are imported."""
        check_inputs(args, self.reads)

    def run(self, args: argparse.Namespace) -> Any:
        module, _, function = self.runs.partition(":")
        return getattr(importlib.import_module(module), function)(args)


def overrides(what: str = "the config", example: str = '{"trainer.num_epochs": 3}') -> Argument:
    """`-o/--overrides`, which most subcommands have."""
    return Argument(
        "-o",
        "--overrides",
        default="",
        metavar="JSONNET",
        help=f"changes to {what}, as in '{example}': dotted keys change one value, undotted ones a whole block",
    )


def flag(*names: str, help: str) -> Argument:
    """An option without a value."""
    return Argument(*names, action="store_true", help=help)


def count(*names: str, help: str, default: int | None = None) -> Argument:
    """An option whose value is a whole number."""
    return Argument(*names, type=int, default=default, metavar="N", help=help)


def dtype(help: str) -> Argument:
    """`--dtype`, a precision."""
    return Argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16", "int8"], help=help)


def batch_size(text: str) -> int:
    """The type of `--batch-size`."""
    if re.fullmatch(r"[0-9]{1,7}", text) is None or not 1 <= int(text) <= MAX_BATCH_SIZE:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed: 1 to {MAX_BATCH_SIZE}")
    return int(text)


SHARED = {
    argument.names[-1]: argument
    for argument in (
        Argument(
            "archive_file", metavar="ARCHIVE", help="model.tar.gz, the directory of a run, or OWNER/NAME in the hub"
        ),
        Argument("param_path", help="the config of a training run"),
        Argument("--batch-size", type=batch_size, metavar="N", help="instead of the data loader's"),
        Argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU"),
        dtype("precision of the layers of a text model; exits are decided in double precision"),
        Argument(
            "--engine",
            metavar="NAME",
            help="how early exit is executed; default: the archive's, or else depth_pools. One with options of its own "
            """is an override: -o '{"model.engine": {"type": "compaction", "capture": false}}'""",
        ),
        flag(
            "--file-friendly-logging",
            help="progress as few, whole lines, for output that goes to a file",
        ),
        Argument("--weights-file", metavar="FILE", help="weights to use instead of the archive's"),
        overrides("the archived config", '{"model.exit_policy": "final"}'),
    )
}
"""Arguments of several subcommands, by name."""


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
    help was printed. Plugins are only loaded if they can matter: for help, and for a subcommand that is not ours. The
    parser of a known subcommand is the only one that is built.
    """
    parser = ArgumentParserWithDefaults(
        prog=prog, description="Train, calibrate, evaluate and use early-exit transformers."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in Subcommand.list_available():
        _add_subcommands(subparsers, [argv[0]])
    elif argv[:1] != ["--version"]:
        import_plugins()
        _add_subcommands(subparsers, Subcommand.list_available())
    args = parser.parse_args(argv)
    if not hasattr(args, "func"):
        parser.print_help()
        return None
    return args


def all_commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of this package's subcommands by name."""
    subparsers = ArgumentParserWithDefaults(prog="allennlp").add_subparsers()
    _add_subcommands(subparsers, Subcommand.list_available())
    return dict(subparsers.choices)


def _add_subcommands(subparsers: argparse._SubParsersAction[Any], names: Sequence[str]) -> None:
    for name in names:
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
