from beem_plugin.exits.heads.attention import AttentionHead, AttentionHeads
from beem_plugin.exits.heads.cascaded import CascadedHead, CascadedHeads
from beem_plugin.exits.heads.equiangular import EquiangularHead, EquiangularHeads
from beem_plugin.exits.heads.head import ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.heads.past_future import PastFutureHead, PastFutureHeads
from beem_plugin.exits.heads.pooled import PooledHead, PooledHeads

__all__ = [
    "AttentionHead",
    "AttentionHeads",
    "CascadedHead",
    "CascadedHeads",
    "EquiangularHead",
    "EquiangularHeads",
    "ExitHead",
    "HeadFamily",
    "HeadSizes",
    "PastFutureHead",
    "PastFutureHeads",
    "PooledHead",
    "PooledHeads",
]
