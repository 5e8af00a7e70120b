"""`allennlp build-vocab`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand, add_overrides


@Subcommand.register("build-vocab")
class BuildVocab(Subcommand):
    """Write the labels of the data that a config reads, for `vocabulary` in configs of other data."""

    help = "write the vocabulary of a config"
    reads = ("param_path",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("param_path", help="the config of a training run")
        parser.add_argument("output_path", help="the file to write, a .tar.gz")
        parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
        add_overrides(parser)

    def run(self, args: argparse.Namespace) -> None:
        from beem_plugin.training.build_vocab import build_vocab_from_args

        build_vocab_from_args(args)
