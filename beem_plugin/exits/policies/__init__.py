from beem_plugin.exits.policies.beem import Beem
from beem_plugin.exits.policies.calibrated import Calibrated
from beem_plugin.exits.policies.cascaded_ensemble import CascadedEnsemble
from beem_plugin.exits.policies.confidence import Entropy, Margin, MaxProbability
from beem_plugin.exits.policies.decaying_threshold import DecayingThreshold
from beem_plugin.exits.policies.expected_gain import ExpectedGain
from beem_plugin.exits.policies.learned import Gate, Halting, PredictedError, Similarity
from beem_plugin.exits.policies.online import OnlineThresholds
from beem_plugin.exits.policies.patience import ConfidentPatience, Patience
from beem_plugin.exits.policies.split import SplitPolicy
from beem_plugin.exits.policies.static import Final, FixedExit
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policies.voting import Voting
from beem_plugin.exits.policy import ExitPolicy

__all__ = [
    "Beem",
    "Calibrated",
    "CascadedEnsemble",
    "ConfidentPatience",
    "DecayingThreshold",
    "Entropy",
    "ExitPolicy",
    "ExpectedGain",
    "Final",
    "FixedExit",
    "Gate",
    "Halting",
    "Margin",
    "MaxProbability",
    "OnlineThresholds",
    "Patience",
    "PredictedError",
    "Similarity",
    "SplitPolicy",
    "ThresholdPolicy",
    "Voting",
]
