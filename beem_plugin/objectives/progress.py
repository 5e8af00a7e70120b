"""The base class of objectives that depend on the training step."""

from __future__ import annotations

from beem_plugin.objectives.objective import Objective


class ProgressingObjective(Objective):
    """
    An objective that depends on the step. The step is set by `start_step` and not saved, so that a recovered
    run continues unchanged. Subclasses have one loss for all steps in evaluation: the validation loss must not depend
    on the last step.
    """

    _progress: tuple[int, int] | None = None

    def start_step(self, step: int, total_steps: int) -> None:
        self._progress = step, total_steps

    @property
    def progress(self) -> tuple[int, int]:
        """Steps done and planned. In training, to go on without them would train something else, unnoticed."""
        if self._progress is None:
            raise RuntimeError(f"{type(self).__name__} depends on the step: call start_step before each step")
        return self._progress
