from beem_plugin.predictors.captioner import CaptionerPredictor
from beem_plugin.predictors.early_exit import EarlyExitPredictor
from beem_plugin.predictors.predictor import Predictor

__all__ = ["CaptionerPredictor", "EarlyExitPredictor", "Predictor"]
