from beem_plugin.objectives.distillation import (
    SelfDistillation as SelfDistillation,
    WeightedDistillation as WeightedDistillation,
)
from beem_plugin.objectives.diverse import Diverse as Diverse
from beem_plugin.objectives.exit_sums import (
    Alternating as Alternating,
    Annealed as Annealed,
    EarlyExits as EarlyExits,
    FinalExit as FinalExit,
)
from beem_plugin.objectives.further_terms import Contrastive as Contrastive, LearnedExit as LearnedExit
from beem_plugin.objectives.imitation import Imitation as Imitation
from beem_plugin.objectives.learned_exits import JointGates as JointGates, Pondering as Pondering
from beem_plugin.objectives.mutual_distillation import MutualDistillation as MutualDistillation
from beem_plugin.objectives.objective import Objective as Objective
