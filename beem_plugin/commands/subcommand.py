"""The base of all subcommands. Parsing comes first: a subcommand's module imports argparse, not torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from beem_plugin.common.errors import ConfigurationError

MAX_BATCH_SIZE = 1_000_000

S = TypeVar("S", bound="type[Subcommand]")


class Subcommand:
    """
    A subcommand of `allennlp`, registered with `@Subcommand.register("name")`. A plugin's subcommands are found through
    `.allennlp_plugins`, as parsing comes before `--include-package`.

    `requires_plugins` says whether it builds things from configs, so that components must be imported first;
    `only_predicts`, whether it neither trains nor computes gradients, so that much of transformers is not imported;
    `error_status` is the exit status after an error.
    """

    requires_plugins: bool = True
    only_predicts: bool = False
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

        # Parameters

        parser : `argparse._SubParsersAction`
            What `ArgumentParser.add_subparsers` gave.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define add_subparser")


def add_overrides(
    parser: argparse.ArgumentParser, what: str = "the config", example: str = '{"trainer.num_epochs": 3}'
) -> None:
    """`-o/--overrides`, which most subcommands have."""
    parser.add_argument(
        "-o",
        "--overrides",
        default="",
        metavar="JSONNET",
        help=f"changes to {what}, as in '{example}': dotted keys change one value, undotted ones a whole block",
    )


def add_archive_overrides(parser: argparse.ArgumentParser) -> None:
    """`-o/--overrides` of the config in an archive."""
    add_overrides(parser, "the archived config", '{"model.exit_policy": "final"}')


def add_file_friendly_logging(parser: argparse.ArgumentParser) -> None:
    """`--file-friendly-logging`."""
    parser.add_argument(
        "--file-friendly-logging",
        action="store_true",
        help="progress as few, whole lines, for output that goes to a file",
    )


def batch_size(text: str) -> int:
    """The type of `--batch-size`."""
    if re.fullmatch(r"[0-9]{1,7}", text) is None or not 1 <= int(text) <= MAX_BATCH_SIZE:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed: 1 to {MAX_BATCH_SIZE}")
    return int(text)
