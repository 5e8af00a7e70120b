from beem_plugin.calibration.thresholds.best_on_validation import BestOnValidation
from beem_plugin.calibration.thresholds.budget import BudgetThresholds
from beem_plugin.calibration.thresholds.error_rate import ErrorRate
from beem_plugin.calibration.thresholds.joint import Joint
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.calibration.thresholds.risk_controlled import RiskControlled
from beem_plugin.calibration.thresholds.ucb import UpperConfidenceBound
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import NEVER, FixedThresholds, ThresholdFit, ThresholdStrategy

__all__ = [
    "NEVER",
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
    "UpperConfidenceBound",
]
