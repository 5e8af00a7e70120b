from beem_plugin.calibration.thresholds.error_rate import ErrorRate as ErrorRate
from beem_plugin.calibration.thresholds.joint import BudgetThresholds as BudgetThresholds, Joint as Joint
from beem_plugin.calibration.thresholds.path import ThresholdPath as ThresholdPath
from beem_plugin.calibration.thresholds.risk_controlled import RiskControlled as RiskControlled
from beem_plugin.calibration.thresholds.shared import (
    BestOnValidation as BestOnValidation,
    UpperConfidenceBound as UpperConfidenceBound,
)
from beem_plugin.exits.score_table import ScoreTable as ScoreTable
from beem_plugin.exits.threshold_strategy import (
    NEVER as NEVER,
    FixedThresholds as FixedThresholds,
    ThresholdFit as ThresholdFit,
    ThresholdStrategy as ThresholdStrategy,
)
