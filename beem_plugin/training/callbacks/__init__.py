from beem_plugin.training.callbacks.callback import (
    TrackEpochCallback as TrackEpochCallback,
    TrainerCallback as TrainerCallback,
)
from beem_plugin.training.callbacks.console_logger import ConsoleLoggerCallback as ConsoleLoggerCallback
from beem_plugin.training.callbacks.cross_level import CrossLevel as CrossLevel
from beem_plugin.training.callbacks.trackers import (
    MLflowCallback as MLflowCallback,
    TensorBoardCallback as TensorBoardCallback,
    WandBCallback as WandBCallback,
)
