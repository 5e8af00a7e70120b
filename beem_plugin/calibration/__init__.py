"""Importing the package registers threshold strategies, weights, confidence calibrations and trace files."""

from beem_plugin.calibration import confidence, thresholds, token_trace, weights

__all__ = ["confidence", "thresholds", "token_trace", "weights"]
