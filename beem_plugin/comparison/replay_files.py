"""Which traces `allennlp replay` was given, which calibrates which, and how they are called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from beem_plugin.common.errors import ConfigurationError


def trace_paths(traces: Sequence[str], calibrations: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """
    The traces, and for each of them the one it is calibrated on.

    # Parameters

    traces : `Sequence[str]`
        If there is none, the last of `calibrations` is the trace: a list of files takes whatever stands behind it.
    calibrations : `Sequence[str]`
        None, one for all, or one for each in the same order.
    """
    traces, calibrations = list(traces), list(calibrations)
    if not traces and len(calibrations) > 1:
        traces = [calibrations.pop()]
    if not traces:
        raise ConfigurationError("found no trace, allowed: one TRACE.npz or more")
    seen: set[str] = set()
    for path in traces:
        if (real := os.path.realpath(path)) in seen:
            raise ConfigurationError(f"{path}: found twice among the traces, allowed: once (it would count twice)")
        seen.add(real)
    if not calibrations:
        return traces, [None] * len(traces)
    if len(calibrations) == 1:
        return traces, [calibrations[0] for _ in traces]
    if len(calibrations) != len(traces):
        raise ConfigurationError(
            f"--calibrate-on: found {len(calibrations)} files for {len(traces)} trace(s), allowed: one for all, "
            "or one for each in the same order"
        )
    return traces, list(calibrations)


def shortest_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths, without their suffix, that tell them apart: `rte-0/dev`, `rte-1/dev`."""
    parts = [Path(path).absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return list(paths)
