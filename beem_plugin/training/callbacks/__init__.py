from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.console_logger import ConsoleLoggerCallback
from beem_plugin.training.callbacks.cross_level import CrossLevel
from beem_plugin.training.callbacks.tensorboard import TensorBoardCallback
from beem_plugin.training.callbacks.track_epoch import TrackEpochCallback
from beem_plugin.training.callbacks.trackers import MLflowCallback, WandBCallback

__all__ = [
    "ConsoleLoggerCallback",
    "CrossLevel",
    "MLflowCallback",
    "TensorBoardCallback",
    "TrackEpochCallback",
    "TrainerCallback",
    "WandBCallback",
]
