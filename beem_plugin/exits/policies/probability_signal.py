"""Signals that are probabilities."""

from __future__ import annotations

from torch import Tensor

from beem_plugin.common.errors import DataError
from beem_plugin.exits.signals import ExitSignals


def probability_signal(signals: ExitSignals, name: str) -> Tensor:
    """
    The signal `name`, `(batch,)`, in the decision precision.

    # Raises

    `DataError`
        If a value is no probability: most likely logits were stored where the sigmoid belongs.
    """
    value = signals.signal(name)
    # Looking at the values of an accelerator's tensor would make it wait for the host at every exit.
    if value.device.type == "cpu" and not bool(((value >= 0) & (value <= 1)).all()):
        sample = int((~((value >= 0) & (value <= 1))).nonzero()[0])
        raise DataError(f"signal {name!r} of sample {sample}: found {float(value[sample])}, allowed: 0 to 1")
    return value
