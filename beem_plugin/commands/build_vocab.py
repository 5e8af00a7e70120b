"""`allennlp build-vocab`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides


@Subcommand.register("build-vocab")
class BuildVocab(Subcommand):
    """Writes the vocabulary of a config's data."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Write the labels of the data that a config reads, for `vocabulary` in configs of other data."
        subparser = parser.add_parser(self.name, description=description, help="write the vocabulary of a config")
        subparser.add_argument("param_path", help="the config of a training run")
        subparser.add_argument("output_path", help="the file to write, a .tar.gz")
        subparser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
        add_overrides(subparser)
        subparser.set_defaults(func=build_vocab_from_args)
        return subparser


def build_vocab_from_args(args: argparse.Namespace) -> None:
    from beem_plugin.training.build_vocab import build_vocab_from_args

    build_vocab_from_args(args)
