"""Checks that what a command reads exists. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from argparse import Namespace

from beem_plugin.common.errors import DataError
from beem_plugin.common.outputs import SLICE

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.tar\.gz)")
"""`owner/name` in the model hub."""

_ARCHIVE, _CONFIG = "{}: no such archive", "config {}: no such file"
_TRACE = "{}: no such trace file; write one with `allennlp trace`"
_MISSING = {
    **dict.fromkeys(("archive_file", "archives", "archive_path", "serialization_dir"), _ARCHIVE),
    **dict.fromkeys(("param_path", "base", "config", "variants"), _CONFIG),
    **dict.fromkeys(("trace", "calibrate_on"), _TRACE),
    "weights_file": "{}: no such weights file",
    "ax": "{}: no such file",
}
_TABLE = re.compile(r".*/[^/]*\.(csv|tsv|jsonl|txt)(\.gz)?", re.IGNORECASE)
"""A source that is a file. A name without a folder may be found by the reader, as in GLUE's `data_dir`."""


def check_inputs(args: Namespace, names: tuple[str, ...]) -> None:
    """Raises a `DataError` for a missing file; others than those of `_MISSING` are sources of a dataset reader."""
    for name in names:
        given = getattr(args, name)
        for path in [given] if isinstance(given, str) else given or ():
            if name in _MISSING:
                found = os.path.expanduser(path), path
                if not any(map(os.path.exists, found)) and not (_MISSING[name] is _ARCHIVE and HUB_ID.fullmatch(path)):
                    raise DataError(_MISSING[name].format(path))
                continue
            for source in path.split(","):
                file = SLICE.sub("", source)
                if _TABLE.fullmatch(file) and not os.path.exists(os.path.expanduser(file)) and not os.path.exists(path):
                    raise DataError(f"{file}: no such file")
