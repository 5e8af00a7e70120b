from beem_plugin.calibration.thresholds.best_on_validation import BestOnValidation
from beem_plugin.calibration.thresholds.budget import BudgetThresholds
from beem_plugin.calibration.thresholds.error_rate import ErrorRate
from beem_plugin.calibration.thresholds.fixed import FixedThresholds
from beem_plugin.calibration.thresholds.joint import Joint
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.calibration.thresholds.risk_controlled import RiskControlled
from beem_plugin.calibration.thresholds.strategy import NEVER, OBSERVED, ScoreTable, ThresholdFit, ThresholdStrategy

__all__ = [
    "NEVER",
    "OBSERVED",
    "BestOnValidation",
    "BudgetThresholds",
    "ErrorRate",
    "FixedThresholds",
    "Joint",
    "RiskControlled",
    "ScoreTable",
    "ThresholdFit",
    "ThresholdPath",
    "ThresholdStrategy",
]
