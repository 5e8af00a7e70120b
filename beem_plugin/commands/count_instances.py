import argparse

from beem_plugin.commands.subcommand import Subcommand, overrides
from beem_plugin.common.errors import ConfigurationError


@Subcommand.register("count-instances")
class CountInstances(Subcommand):
    """Count the training instances that a config reads."""

    help = "count training instances"
    reads = ("param_path",)
    arguments = ("param_path", overrides())

    def run(self, args: argparse.Namespace) -> None:
        from beem_plugin.common.params import load_config
        from beem_plugin.data.dataset_reader import DatasetReader

        params = load_config(args.param_path, args.overrides)
        for key in ("dataset_reader", "train_data_path"):
            if key not in params:
                raise ConfigurationError(f"{key}: missing in {args.param_path}")
        reader = DatasetReader.from_params(params["dataset_reader"])
        count = sum(1 for _ in reader.read(params["train_data_path"]))
        print(f"Success! One epoch of training contains {count} instances.")
