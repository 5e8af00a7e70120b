"""Importing the package registers threshold strategies, confidence calibrations and trace files."""

from beem_plugin.calibration import confidence, thresholds, token_trace

__all__ = ["confidence", "thresholds", "token_trace"]
