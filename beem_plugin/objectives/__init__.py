from beem_plugin.objectives.objective import Objective
from beem_plugin.objectives.weighted_distillation import WeightedDistillation

__all__ = ["Objective", "WeightedDistillation"]
