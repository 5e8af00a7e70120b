from beem_plugin.exits.signal_modules.gate import GateModule
from beem_plugin.exits.signal_modules.halt import Halt
from beem_plugin.exits.signal_modules.predicted_error import PredictedError
from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule
from beem_plugin.exits.signal_modules.similarity import Similarity

__all__ = ["ExitView", "GateModule", "Halt", "PredictedError", "SignalModule", "Similarity"]
