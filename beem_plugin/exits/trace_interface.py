"""What policies, weights and threshold strategies read of a trace; `calibration` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.signals import ExitSignals


class Trace(Protocol):
    """
    The outputs of all exits for a set of samples: see `beem_plugin.calibration.trace.ExitTrace`.
    """

    signals: Mapping[str, Tensor]

    def __len__(self) -> int: ...

    @property
    def logits(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def num_exits(self) -> int: ...
    @property
    def num_labels(self) -> int: ...
    @property
    def exit_layers(self) -> list[int]: ...
    @property
    def metric(self) -> str: ...
    @property
    def predictions(self) -> Tensor: ...
    @property
    def has_labels(self) -> bool: ...
    @property
    def has_logits(self) -> bool: ...
    @property
    def has_independent_samples(self) -> bool: ...

    @property
    def source(self) -> str:
        """Name of the data."""

    def exit_signals(self, exit_number: int) -> ExitSignals:
        """The signals of exit `exit_number` (1-based) for all samples."""

    def depth(self, exits: Tensor) -> dict[str, Any]:
        """Layer speed-up and exit histogram of `(samples,)` 1-based exits."""

    def with_logits(self, logits: Tensor) -> Any:
        """The same samples with other logits."""

    def calibration_errors(self) -> list[float]:
        """The expected calibration error of every exit."""

    def report_on(self, policy: Any, **fitted: Any) -> CalibrationReport:
        """What a calibrated `policy` does on these samples; `fitted` as in `CalibrationReport`."""
