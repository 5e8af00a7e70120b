from beem_plugin.exits.heads.head import ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.heads.pooled import PooledHead, PooledHeads

__all__ = ["ExitHead", "HeadFamily", "HeadSizes", "PooledHead", "PooledHeads"]
