"""The contract of confidence calibrations."""

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable, registered_name
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.trace_interface import Trace

T = TypeVar("T", bound=Trace)


class ConfidenceCalibration(Registrable):
    """A transformation of each exit's logits, fitted so that of predictions with probability 0.9, 9 in 10 are right."""

    fitted: ClassVar[tuple[str, ...]] = ()
    """The config keys, and attributes, of its numbers, which have an entry an exit and are `None` until fitted."""

    @property
    def is_fitted(self) -> bool:
        return all(getattr(self, name) is not None for name in self.fitted)

    def fit(self, trace: Trace) -> None:
        """Fits every exit on the labelled samples of `trace`."""

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        """`(batch, labels)` logits of exit `exit_number` (1-based), calibrated, in the decision precision."""
        raise TypeError(f"{type(self).__name__} does not define transform")

    def check_exits(self, num_exits: int, num_labels: int) -> None:
        """Raises a `ConfigurationError` if fitted numbers are for another network."""

    def to_config(self) -> dict[str, Any]:
        """The calibration as a config with its fitted numbers."""
        numbers = {name: getattr(self, name) for name in self.fitted}
        return {"type": registered_name(ConfidenceCalibration, self), **numbers}

    def signals(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        """The signals of an exit with calibrated logits; further signals are unchanged."""
        return signals.with_logits(self.transform(exit_number, signals.logits))

    def apply(self, trace: T) -> T:
        """`trace` with all logits calibrated, in float64."""
        columns = [
            self.transform(number, trace.logits[:, number - 1]).double() for number in range(1, trace.num_exits + 1)
        ]
        calibrated: T = trace.with_logits(torch.stack(columns, 1))
        return calibrated
