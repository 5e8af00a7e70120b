from beem_plugin.objectives.contrastive import Contrastive
from beem_plugin.objectives.distillation import SelfDistillation, WeightedDistillation
from beem_plugin.objectives.diverse import Diverse
from beem_plugin.objectives.exit_sums import Alternating, Annealed, EarlyExits, FinalExit
from beem_plugin.objectives.imitation import Imitation
from beem_plugin.objectives.joint_gates import JointGates
from beem_plugin.objectives.learned_exit import LearnedExit
from beem_plugin.objectives.mutual_distillation import MutualDistillation
from beem_plugin.objectives.objective import Objective
from beem_plugin.objectives.pondering import Pondering

__all__ = [
    "Alternating",
    "Annealed",
    "Contrastive",
    "Diverse",
    "EarlyExits",
    "FinalExit",
    "Imitation",
    "JointGates",
    "LearnedExit",
    "MutualDistillation",
    "Objective",
    "Pondering",
    "SelfDistillation",
    "WeightedDistillation",
]
