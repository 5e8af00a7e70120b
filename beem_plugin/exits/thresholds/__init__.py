from beem_plugin.exits.thresholds.best_on_validation import BestOnValidation
from beem_plugin.exits.thresholds.budget import BudgetThresholds
from beem_plugin.exits.thresholds.error_rate import ErrorRate
from beem_plugin.exits.thresholds.fixed import FixedThresholds
from beem_plugin.exits.thresholds.joint import Joint
from beem_plugin.exits.thresholds.path import ThresholdPath
from beem_plugin.exits.thresholds.risk_controlled import RiskControlled
from beem_plugin.exits.thresholds.strategy import NEVER, OBSERVED, ScoreTable, ThresholdFit, ThresholdStrategy

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
