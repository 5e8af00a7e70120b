from beem_plugin.training.callbacks.callback import (
    ConsoleLoggerCallback as ConsoleLoggerCallback,
    TrackEpochCallback as TrackEpochCallback,
    TrainerCallback as TrainerCallback,
)
from beem_plugin.training.callbacks.cross_level import CrossLevel as CrossLevel
from beem_plugin.training.callbacks.trackers import (
    MLflowCallback as MLflowCallback,
    TensorBoardCallback as TensorBoardCallback,
    WandBCallback as WandBCallback,
)
