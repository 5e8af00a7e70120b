from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.console_logger import ConsoleLoggerCallback
from beem_plugin.training.callbacks.cross_level import CrossLevel
from beem_plugin.training.callbacks.tensorboard import TensorBoardCallback
from beem_plugin.training.callbacks.track_epoch import TrackEpochCallback

__all__ = ["ConsoleLoggerCallback", "CrossLevel", "TensorBoardCallback", "TrackEpochCallback", "TrainerCallback"]
