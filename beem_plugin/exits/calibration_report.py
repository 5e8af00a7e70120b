"""The result of a calibration."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class ExitEvidence:
    """
    One exit of a calibrated policy on the calibration data.

    # Parameters

    exit : `int`
        1-based.
    threshold : `float | str | None`
        In the policy's own unit; `"never"`; `None` for a policy without thresholds.
    samples : `int`
        Calibration samples that exit at this exit.
    errors : `int`, optional
        Number of these with a wrong label; `None` for a regression.
    final_errors : `int`, optional
        Number of the same samples for which the last exit is wrong.
    error_rate : `float`, optional
        `errors / samples`, `None` without samples.
    interval : `tuple[float, float]`, optional
        Clopper-Pearson 95 % interval of the error rate.
    """

    exit: int
    threshold: float | str | None
    samples: int
    errors: int | None
    final_errors: int | None
    error_rate: float | None = None
    interval: tuple[float, float] | None = None


@dataclass
class CalibrationReport:
    """
    The result of `ExitPolicy.calibrate`: the fitted parameters and the decisions on the calibration data. All figures
    are computed on the data used for fitting; they are not test results.

    # Parameters

    policy : `dict[str, Any]`
        The calibrated policy as a config.
    samples : `int`
        Calibration samples.
    source : `str`
        Name of the calibration data.
    weights : `list[float]`, optional
    thresholds : `list[float | str]`, optional
        One entry per exit but the last.
    evidence : `list[ExitEvidence]`
    final_error : `float`, optional
        Error rate of the last exit, p in the paper. `None` without labels, and for a regression, whose squared errors
        are in `details`.
    error : `float`, optional
        Error rate of the policy on the calibration data.
    layer_speedup : `float`
    exit_histogram : `list[int]`
    warnings : `list[str]`
    details : `dict[str, Any]`
        Further evidence of the strategy.
    """

    policy: dict[str, Any]
    samples: int
    source: str
    final_error: float | None
    error: float | None
    layer_speedup: float
    exit_histogram: list[int]
    weights: list[float] | None = None
    thresholds: list[float | str] | None = None
    evidence: list[ExitEvidence] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def early_share(self) -> float:
        """
        The share of the calibration samples that exit before the last exit; also in the JSON form. At 0 the policy is
        full depth plus the cost of the exits.
        """
        samples = sum(self.exit_histogram)
        return 1 - self.exit_histogram[-1] / samples if samples else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "early_share": self.early_share}
