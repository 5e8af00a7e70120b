from beem_plugin.common.plugins import lazy_names
from beem_plugin.predictors.early_exit import EarlyExitPredictor
from beem_plugin.predictors.predictor import Predictor

__all__ = ["CaptionerPredictor", "EarlyExitPredictor", "Predictor"]

__getattr__ = lazy_names(__name__, {"CaptionerPredictor": "captioner"})
