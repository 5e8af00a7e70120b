"""`allennlp new-config`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand


@Subcommand.register("new-config")
class NewConfig(Subcommand):
    """Look at the columns, labels and lengths of a table of labelled texts, and write a config for it."""

    help = "write a config for data of one's own"
    requires_plugins = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", required=True, metavar="FILE", help="CSV, TSV or JSON lines, gzipped or not")
        parser.add_argument("--output", default="my_data.jsonnet", metavar="FILE", help="the config")
        parser.add_argument("--text", action="append", metavar="COLUMN", help="the text; twice for pairs")
        parser.add_argument("--label", metavar="COLUMN", help="the column of the classes")
        parser.add_argument(
            "--encoder", default="microsoft/mpnet-base", metavar="NAME", help="a hub name, a folder, or package:minilm"
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the config if it exists")

    def run(self, args: argparse.Namespace) -> None:
        from beem_plugin.training.new_config import new_config_from_args

        new_config_from_args(args)
