from beem_plugin.exits.heads.attention import AttentionHead as AttentionHead, AttentionHeads as AttentionHeads
from beem_plugin.exits.heads.equiangular import EquiangularHead as EquiangularHead, EquiangularHeads as EquiangularHeads
from beem_plugin.exits.heads.head import (
    ExitHead as ExitHead,
    HeadFamily as HeadFamily,
    HeadSizes as HeadSizes,
    PooledHead as PooledHead,
    PooledHeads as PooledHeads,
)
from beem_plugin.exits.heads.with_memory import (
    CascadedHead as CascadedHead,
    CascadedHeads as CascadedHeads,
    PastFutureHead as PastFutureHead,
    PastFutureHeads as PastFutureHeads,
)
