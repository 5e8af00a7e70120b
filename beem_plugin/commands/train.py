import argparse
import itertools
import os
from pathlib import Path
from typing import Any

from beem_plugin.commands.subcommand import Argument, Subcommand, flag, overrides
from beem_plugin.common.errors import ConfigurationError

RUNS = Path("runs")


@Subcommand.register("train")
class Train(Subcommand):
    """Train the model that a config describes, calibrate its exits, and archive it."""

    help = "train a model"
    reads = ("param_path",)
    after_interrupt = "the same command with -s DIR --recover goes on"
    arguments = (
        Argument("param_path", help="the config: jsonnet, json or yaml"),
        Argument(
            "-s",
            "--serialization-dir",
            metavar="DIR",
            help="where the model, its log and results go; if not given, runs/NAME_OF_CONFIG, numbered if there is one",
        ),
        flag("-r", "--recover", help="continue the interrupted run in the serialization directory"),
        flag("-f", "--force", help="delete the serialization directory first if it exists"),
        overrides(),
        Argument("--node-rank", type=int, default=0, help="rank of this node, for training on several nodes"),
        flag(
            "--dry-run",
            help="build everything, show the data's statistics and validate a batch; trains and writes nothing",
        ),
        "--file-friendly-logging",
    )

    def run(self, args: argparse.Namespace) -> Any:
        if args.serialization_dir is None and not args.dry_run:
            args.serialization_dir = str(choose_serialization_dir(args.param_path, args.recover))
            print(f"writing to {args.serialization_dir}", flush=True)
        from beem_plugin.training.train import train_model_from_args

        return train_model_from_args(args)


def choose_serialization_dir(param_path: str, recover: bool = False) -> Path:
    """`runs/NAME`, or the first of `runs/NAME_2`, `runs/NAME_3`, ... that is not taken."""
    name = Path(param_path).stem
    taken = sorted(str(path) for path in RUNS.glob(f"{name}*") if path.is_dir())
    if recover:
        raise ConfigurationError(f"--recover needs -s DIR, the run to go on with; found: {', '.join(taken) or 'none'}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Each process would choose for itself, and the second would find the directory of the first.
        raise ConfigurationError("training in several processes needs -s DIR, the same for all of them")
    numbered = (RUNS / f"{name}_{number}" for number in itertools.count(2))
    folders = itertools.chain([RUNS / name], numbered)
    return next(each for each in folders if not each.exists() or (each.is_dir() and not any(each.iterdir())))
