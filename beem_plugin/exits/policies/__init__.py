from beem_plugin.exits.policies.beem import Beem as Beem
from beem_plugin.exits.policies.cascaded_ensemble import CascadedEnsemble as CascadedEnsemble
from beem_plugin.exits.policies.confidence import Entropy as Entropy, Margin as Margin, MaxProbability as MaxProbability
from beem_plugin.exits.policies.expected_gain import ExpectedGain as ExpectedGain
from beem_plugin.exits.policies.learned import (
    Gate as Gate,
    Halting as Halting,
    PredictedError as PredictedError,
    Similarity as Similarity,
)
from beem_plugin.exits.policies.online import OnlineThresholds as OnlineThresholds, SplitPolicy as SplitPolicy
from beem_plugin.exits.policies.patience import ConfidentPatience as ConfidentPatience, Patience as Patience
from beem_plugin.exits.policies.static import Final as Final, FixedExit as FixedExit
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy as ThresholdPolicy
from beem_plugin.exits.policies.voting import Voting as Voting
from beem_plugin.exits.policies.wrapped import Calibrated as Calibrated, DecayingThreshold as DecayingThreshold
from beem_plugin.exits.policy import ExitPolicy as ExitPolicy
