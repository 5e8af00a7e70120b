"""Importing the package registers threshold strategies, confidence calibrations and trace files."""

from beem_plugin.calibration import confidence as confidence, thresholds as thresholds, token_trace as token_trace
