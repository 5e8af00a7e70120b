from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_classifier import MultiExitClassifier
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder

__all__ = ["Model", "MultiExitClassifier", "MultiExitEncoder"]
