"""`allennlp count-instances`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides
from beem_plugin.common.errors import ConfigurationError


@Subcommand.register("count-instances")
class CountInstances(Subcommand):
    """Counts the training instances of a config."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Count the training instances that a config reads."
        subparser = parser.add_parser(self.name, description=description, help="count training instances")
        subparser.add_argument("param_path", help="the config of a training run")
        add_overrides(subparser)
        subparser.set_defaults(func=count_instances_from_args)
        return subparser


def count_instances_from_args(args: argparse.Namespace) -> None:
    from beem_plugin.common.params import load_config
    from beem_plugin.data.dataset_reader import DatasetReader

    params = load_config(args.param_path, args.overrides)
    for key in ("dataset_reader", "train_data_path"):
        if key not in params:
            raise ConfigurationError(f"{key}: missing in {args.param_path}")
    reader = DatasetReader.from_params(params["dataset_reader"])
    count = sum(1 for _ in reader.read(params["train_data_path"]))
    print(f"Success! One epoch of training contains {count} instances.")
