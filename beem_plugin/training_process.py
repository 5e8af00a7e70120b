"""`python -m beem_plugin.training_process`: runs the pickled job of a `Launcher` that it reads from standard input."""

import pickle
import signal
import sys
from argparse import Namespace

from beem_plugin.__main__ import run
from beem_plugin.commands import Subcommand


class RunJob(Subcommand):
    """A command like others, so that plugins, log, signals and errors are treated alike."""

    arguments = ("--file-friendly-logging",)

    def run(self, args: Namespace) -> None:
        # Ctrl-C reaches all processes of a terminal. The launcher answers it with one SIGTERM to each training: an
        # interrupt before that would make it the second, which ends the archiving of the best epoch.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pickle.load(sys.stdin.buffer)()


if __name__ == "__main__":
    Subcommand.register("run-job")(RunJob)
    sys.argv.insert(1, "run-job")
    run()
