"""`python -m beem_plugin.training_process`: runs the pickled job of a `Launcher` that it reads from standard input."""

import pickle
import sys
from argparse import Namespace

from beem_plugin.__main__ import run
from beem_plugin.commands import Subcommand


class RunJob(Subcommand):
    """A command like others, so that plugins, log, signals and errors are treated alike."""

    arguments = ("--file-friendly-logging",)

    def run(self, args: Namespace) -> None:
        pickle.load(sys.stdin.buffer)()


if __name__ == "__main__":
    Subcommand.register("run-job")(RunJob)
    sys.argv.insert(1, "run-job")
    run()
