"""`allennlp new-config`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand


@Subcommand.register("new-config")
class NewConfig(Subcommand):
    """Writes a config for a table of labelled texts."""

    requires_plugins = False

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Look at the columns, labels and lengths of a table of labelled texts, and write a config for it."
        subparser = parser.add_parser(self.name, description=description, help="write a config for data of one's own")
        subparser.add_argument("--data", required=True, metavar="FILE", help="CSV, TSV or JSON lines, gzipped or not")
        subparser.add_argument("--output", default="my_data.jsonnet", metavar="FILE", help="the config")
        subparser.add_argument("--text", action="append", metavar="COLUMN", help="the text; twice for pairs")
        subparser.add_argument("--label", metavar="COLUMN", help="the column of the classes")
        subparser.add_argument(
            "--encoder", default="microsoft/mpnet-base", metavar="NAME", help="a hub name, a folder, or package:minilm"
        )
        subparser.add_argument("-f", "--force", action="store_true", help="replace the config if it exists")
        subparser.set_defaults(func=new_config_from_args)
        return subparser


def new_config_from_args(args: argparse.Namespace) -> None:
    from beem_plugin.training.new_config import new_config_from_args

    new_config_from_args(args)
