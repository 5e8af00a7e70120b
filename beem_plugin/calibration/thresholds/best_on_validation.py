"""One threshold for all exits, by the task's metric."""

from dataclasses import dataclass

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import check_choice
from beem_plugin.common.metrics import METRICS, check_metric, main_score
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdGrid, ThresholdStrategy

MAX_CANDIDATES = 200


@ThresholdStrategy.register("best_on_validation")
@dataclass(eq=False)
class BestOnValidation(ThresholdStrategy):
    """
    The paper's classical method (BEEM, section 4.1): one threshold for all exits, the one of a grid with the best
    metric on the calibration data. Of several equally good ones the most permissive, so the fastest, is taken.

    Registered as a `ThresholdStrategy` with name "best_on_validation".

    # Parameters

    grid : `list` or `str` or `int`, optional (default = `[0.3, 0.6, 0.9, 1.2, 1.5]` for BEEM, else `"observed"`)
        Thresholds in the policy's own unit; `"never"` is allowed. BEEM's default is the paper's, made for BEEM-C.
        `"observed"` takes up to 200 quantiles of the scores of all exits, and never; an integer k takes k of them.
    metric : `str`, optional (default = the task's own)
        A name of `beem_plugin.common.metrics`.
    """

    serves_regression = True

    grid: list | str | int | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        if self.metric is not None:
            check_choice("thresholds.metric", self.metric, METRICS)
        self.candidates = ThresholdGrid(self.grid, "best_on_validation").candidates

    def check_task(self, num_labels: int) -> None:
        super().check_task(num_labels)
        if self.metric is not None:
            check_metric("thresholds.metric", self.metric, num_labels == 1)

    def fit(self, table: ScoreTable) -> ThresholdFit:
        table.require_labels("best_on_validation")
        metric = self.metric or table.metric
        labels = table.labels.numpy()
        candidates = []
        for threshold in self.candidates(table, table.scores[:, :-1].flatten(), MAX_CANDIDATES):
            exits = table.exits([threshold] * (table.num_exits - 1))
            value = main_score(metric, labels, table.predictions_at(exits).numpy())
            speedup = depth_summary(exits, table.exit_layers, table.costs)["layer_speedup"]
            candidates.append((value, threshold, speedup))
        # max() keeps the first of several equal ones, and the grid runs from the most permissive on.
        _, best, _ = max(candidates, key=lambda candidate: candidate[0])
        shown = [
            {"threshold": table.orient(threshold), metric: value, "layer_speedup": speedup}
            for value, threshold, speedup in candidates
            if threshold != float("inf")
        ]
        return ThresholdFit([best] * (table.num_exits - 1), details={"candidates": shown})
