from beem_plugin.exits.branches.branch import (
    Branch as Branch,
    BranchedHead as BranchedHead,
    with_branches as with_branches,
)
from beem_plugin.exits.branches.kinds import (
    AdapterBranch as AdapterBranch,
    MlpBranch as MlpBranch,
    TransformerBranch as TransformerBranch,
)
