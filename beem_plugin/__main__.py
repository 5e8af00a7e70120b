"""`python -m beem_plugin`, `allennlp` and `beem`: the same command."""

from __future__ import annotations

import sys
from pathlib import Path

from beem_plugin.commands import main


def run() -> None:
    """The console script."""
    name = Path(sys.argv[0]).name
    sys.exit(main("python -m beem_plugin" if name == "__main__.py" else name))


if __name__ == "__main__":
    run()
