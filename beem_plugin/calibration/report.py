"""What was fitted on which data, and what it did there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class ExitEvidence:
    """
    What the calibration data say about one exit under the chosen numbers.

    # Parameters

    exit : `int`
        1-based.
    threshold : `float | str | None`
        In the policy's own units; `"never"`; `None` for a rule without thresholds.
    samples : `int`
        Calibration samples that left here.
    errors : `int`, optional
        How many of them left with a wrong label; `None` for a regression.
    final_errors : `int`, optional
        How many of the same samples the last exit gets wrong.
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
    The result of `ExitPolicy.calibrate`: the numbers that were fitted, with their evidence, and what they did on the
    calibration data. Figures here are of the data that was fitted on; they are no test result.

    # Parameters

    policy : `dict[str, Any]`
        The calibrated policy as a config.
    samples : `int`
        Calibration samples.
    source : `str`
        Which data they are.
    weights : `list[float]`, optional
    thresholds : `list[float | str]`, optional
        One entry an exit but the last.
    evidence : `list[ExitEvidence]`
    final_error : `float`, optional
        Error rate of the last exit, p in the paper. `None` without labels, and for a regression, whose squared errors
        are in `details`.
    error : `float`, optional
        Error rate that the policy reached on the calibration data.
    layer_speedup : `float`
    exit_histogram : `list[int]`
    warnings : `list[str]`
    details : `dict[str, Any]`
        Whatever else a strategy has to say.
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
        The share of the calibration samples that left before the last exit, in JSON beside the parameters. At 0 the
        policy is full depth, with the cost of the exits on top.
        """
        samples = sum(self.exit_histogram)
        return 1 - self.exit_histogram[-1] / samples if samples else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "early_share": self.early_share}
