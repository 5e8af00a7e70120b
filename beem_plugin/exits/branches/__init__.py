from beem_plugin.exits.branches.adapter import AdapterBranch as AdapterBranch
from beem_plugin.exits.branches.branch import (
    Branch as Branch,
    BranchedHead as BranchedHead,
    with_branches as with_branches,
)
from beem_plugin.exits.branches.transformer import MlpBranch as MlpBranch, TransformerBranch as TransformerBranch
