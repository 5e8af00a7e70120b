"""`python -m beem_plugin`, `allennlp` and `beem`: the same command."""

import logging
import os
import sys
import threading
from pathlib import Path

from beem_plugin.commands import main


def run() -> None:
    """The console script."""
    name = Path(sys.argv[0]).name
    status = main("python -m beem_plugin" if name == "__main__.py" else name)
    if any(thread.daemon for thread in threading.enumerate()):
        # A thread that still waits for input, after an interrupt, would block or crash the interpreter's shutdown.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
