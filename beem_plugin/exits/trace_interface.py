"""What policies, weights and threshold strategies read of a trace; `calibration` implements it."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.signals import ExitSignals


class Trace(Protocol):
    """The outputs of all exits for a set of samples: see `beem_plugin.calibration.trace.ExitTrace`."""

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
    def exit_costs(self) -> list[float]: ...
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
    def source(self) -> str: ...
    def exit_signals(self, exit_number: int) -> ExitSignals: ...
    def depth(self, exits: Tensor, policy: Any = None) -> dict[str, Any]: ...
    def with_logits(self, logits: Tensor) -> Any: ...
    def calibration_errors(self) -> list[float]: ...
    def report_on(self, policy: Any, **fitted: Any) -> CalibrationReport: ...


def check_signals(policy: Any, available: Collection[str], where: str) -> None:
    """Raises a `ConfigurationError` if `policy` needs a signal that `where` does not have."""
    missing = [name for name in policy.required_signals if name not in available]
    if missing:
        raise ConfigurationError(
            f"{policy.registered_name} needs the signals {missing}, which {where} does not have; "
            f"found: {sorted(available) or 'only logits'}"
        )


def require_labels(trace: Trace, what: str) -> None:
    """Raises a `ConfigurationError` that `what` needs labels unless every sample of `trace` has one."""
    if not trace.has_labels:
        found = int((trace.labels >= 0).sum())
        raise ConfigurationError(
            f"{what} need labelled calibration data; found {found} labels for {len(trace)} samples"
        )
