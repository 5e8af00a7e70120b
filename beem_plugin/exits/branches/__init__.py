from beem_plugin.exits.branches.adapter import AdapterBranch
from beem_plugin.exits.branches.branch import Branch
from beem_plugin.exits.branches.branched_head import BranchedHead, with_branches
from beem_plugin.exits.branches.mlp import MlpBranch
from beem_plugin.exits.branches.transformer import TransformerBranch

__all__ = [
    "AdapterBranch",
    "Branch",
    "BranchedHead",
    "MlpBranch",
    "TransformerBranch",
    "with_branches",
]
