from beem_plugin.execution.auto import Auto
from beem_plugin.execution.compaction import Compaction
from beem_plugin.execution.depth_pools import DepthPools
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.single import Single

__all__ = ["Auto", "Compaction", "DepthPools", "Engine", "ExecutedBatch", "Single"]
