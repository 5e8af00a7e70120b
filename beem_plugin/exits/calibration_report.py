"""The result of a calibration."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class ExitEvidence:
    """One exit of a calibrated policy on the calibration data; numbers of errors are `None` for a regression."""

    exit: int  # from 1
    threshold: float | str | None  # in the policy's own unit, or "never"; `None` for a policy without thresholds
    samples: int  # that exit here
    errors: int | None  # of these
    final_errors: int | None  # of the last exit on the same samples
    error_rate: float | None = None  # errors / samples, `None` without samples
    interval: tuple[float, float] | None = None  # of the error rate, Clopper-Pearson, 95 %


@dataclass
class CalibrationReport:
    """The fitted parameters, and the decisions on the calibration data: its figures are no test results."""

    policy: dict[str, Any]  # the calibrated policy as a config
    samples: int
    source: str  # name of the calibration data
    final_error: float | None  # of the last exit, p in the paper; `None` without labels, and for a regression
    error: float | None  # of the policy
    layer_speedup: float
    exit_histogram: list[int]
    weights: list[float] | None = None
    thresholds: list[float | str] | None = None  # one per exit but the last
    evidence: list[ExitEvidence] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # of the strategy; of a regression its squared errors

    @property
    def early_share(self) -> float:
        """The share of samples that exit before the last exit: at 0, full depth plus the cost of the exits."""
        samples = sum(self.exit_histogram)
        return 1 - self.exit_histogram[-1] / samples if samples else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "early_share": self.early_share}
