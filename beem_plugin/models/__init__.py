from beem_plugin.common.plugins import lazy_names
from beem_plugin.models.hash_exit_encoder import HashExitEncoder
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.multi_exit_model import MultiExitClassifier, MultiExitModel, MultiExitRegressor

__all__ = [
    "HashExitEncoder",
    "Model",
    "MultiExitCaptioner",
    "MultiExitClassifier",
    "MultiExitDecoder",
    "MultiExitEncoder",
    "MultiExitModel",
    "MultiExitRegressor",
]

__getattr__ = lazy_names(
    __name__, {"MultiExitCaptioner": "multi_exit_captioner", "MultiExitDecoder": "multi_exit_decoder"}
)
