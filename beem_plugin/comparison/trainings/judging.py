"""What an exit policy does on a finished training, and the steps that make what is read for it."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.metrics import MAIN_SCORE
from beem_plugin.comparison.operating_curve import CURVE_POINTS, Family, TraceJudge
from beem_plugin.comparison.result import PolicyResult, build
from beem_plugin.comparison.trainings.runs import TrainingRun
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.comparison.trainings.variants import Variant


def judging_steps(run: TrainingRun) -> list[Callable[[], Any]]:
    """`Steps`: what `judge` reads for the variants of the training."""
    trained = TrainedRun(run)
    steps = [step for one in run.training.variants for step in reading_steps(trained, one, one.sources())]
    for one in run.training.variants:
        if one.open_policy() is not None and not trained.fitted_path(one).is_file():
            steps.append(partial(judged, one, trained, one.judged_source()))
    return steps


def tracing_steps(run: TrainingRun, like: Variant | None = None) -> list[Callable[[], Any]]:
    """`Steps` of the data that `like`, by default the training's first variant, is fitted on and judged on."""
    variant = like or run.training.variants[0]
    sources = [(variant.calibration_source(), True), (variant.judged_source(), False)]
    return reading_steps(TrainedRun(run), variant, sources)


def reading_steps(trained: TrainedRun, variant: Variant, sources: list[tuple[str, bool]]) -> list[Callable[[], Any]]:
    """Traces of `sources`, multiply-accumulates on the data that the variant is judged on, numbers of parameters."""
    steps: list[Callable[[], Any]] = [] if "parameters" in trained.run.record else [lambda: trained.figures]
    for source, by_training_reader in sources:
        if not trained.trace_path(source, by_training_reader).is_file():
            steps.append(partial(trained.trace, source, variant.batch_size, by_training_reader))
    judged_on = variant.judged_source()
    return steps if trained.macs_path(judged_on).is_file() else [*steps, partial(trained.macs, judged_on)]


class Judged(NamedTuple):
    """A variant's policy on a trace of a training."""

    judge: TraceJudge
    family: Family
    decisions: ExitDecisions
    calibrated_on: str | None  # `None`: all numbers were given

    @property
    def result(self) -> PolicyResult:
        return self.family.results[0]


def judged(variant: Variant, trained: TrainedRun, source: str) -> Judged:
    """The variant's policy, fitted on its calibration data, on `source`. A fit is kept: it may take seconds."""
    trace = trained.trace(source, variant.batch_size)
    sources = [] if build(variant.policy, trace).is_calibrated else variant.fitted_sources()
    fitted_on = [trained.trace(one, variant.batch_size, by_training_reader=True) for one in sources]
    calibration, parameters = [*fitted_on, None, None][:2]
    judge = TraceJudge(trace, calibration, parameters=parameters)
    path = trained.fitted_path(variant) if sources else None
    kept = json.loads(path.read_text("utf-8")) if path is not None and path.is_file() else None
    family, decisions = judge.single(kept["policy"] if kept else variant.policy, bootstrap=False)
    (result,) = family.results
    if kept:
        result.warnings = list(dict.fromkeys([*kept["warnings"], *result.warnings]))
    elif path is not None and result.calibration is not None:
        write_json(path, {"policy": result.policy, "warnings": result.calibration["warnings"]})
    if not result.metrics:
        raise ConfigurationError(f"{trace.source}: no sample has a label, so nothing can be judged on them")
    return Judged(judge, family, decisions, next(iter(sources), None))


def judge(variant: Variant, trained: TrainedRun) -> dict[str, Any]:
    """
    The variant's exit policy and calibration on a training of its, judged on the test or else the validation data.

    Gives `metrics` under the policy, `final_metrics` of the last exit, `main_metric`, `depth` (layers of the network),
    `right` (which samples are right), 95 % `intervals` of accuracy and layer speed-up over samples, the figures of
    `depth_summary`, the resolved `policy`, `judged_on` and `calibrated_on` (`None`: all numbers were given), `parts`
    (`metrics` of each test set, where there are several), `trace_file` (what it was calibrated on, or else judged on),
    `gmacs` where they are counted, `warnings`, and the `curve` of a policy with a score, or `None`.
    """
    source, tests = variant.judged_source(), variant.test_sets()
    found = judged(variant, trained, source)
    result, trace, calibrated_on = found.result, found.judge.trace, found.calibrated_on
    curve = None if trace.is_regression else found.judge.curve(found.family, "accuracy", sweep=True)
    parts = {name: judged(variant, trained, one).result.metrics for name, one in tests.items() if len(tests) > 1}
    own = ("metrics", "final_metrics", "right", "intervals", "policy", "warnings")
    return {
        **{name: getattr(result, name) for name in own},
        "main_metric": MAIN_SCORE[trace.metric],
        "samples": result.n,
        "depth": trace.exit_layers[-1],
        **result.depth,
        "parts": parts,
        **trained.gmacs(source, found.decisions.exits),
        "trace_file": str(trained.trace_path(calibrated_on or source, calibrated_on is not None)),
        "judged_on": source,
        "calibrated_on": calibrated_on,
        "curve": None if curve is None else curve.thinned(CURVE_POINTS),
    }
