"""The captions of trained captioners under exit policies: decoded once, and kept beside the training."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from beem_plugin.archival import Archive
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.files import write_json
from beem_plugin.common.strict_json import read_json
from beem_plugin.comparison.caption_scores import FULL_DEPTH
from beem_plugin.comparison.caption_table import decoded_rows, table_cases
from beem_plugin.comparison.trainings.runs import TrainingRun
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.tasks.captioning import captioner_of


def caption_steps(run: TrainingRun, source: str = "", batch_size: int = 32) -> list[Callable[[], Any]]:
    """`Steps` of `captions_of`: captions of `source`, by default of the test data."""
    kept = {row["name"] for row in read_json(captions_path(run))["rows"]} if captions_path(run).is_file() else set()
    is_kept = kept >= {variant.name for variant in run.training.variants}
    return [] if is_kept else [partial(decode, run, source or str(run.config["test_data_path"]), batch_size)]


def captions_of(run: TrainingRun, source: str = "", batch_size: int = 32) -> dict[str, Any]:
    """
    What is kept in `seed_K.captions.json`: the `rows` of `decoded_rows` for the policy of each variant of the training
    (one named `FULL_DEPTH` has none), each with the `depth` of the network; `references` and `exit_layers`.
    """
    for step in caption_steps(run, source, batch_size):
        step()
    kept, names = read_json(captions_path(run)), {variant.name for variant in run.training.variants}
    return {**kept, "rows": [row for row in kept["rows"] if row["name"] in names]}


def captions_path(run: TrainingRun) -> Path:
    return run.serialization_dir.with_suffix(".captions.json")


def decode(run: TrainingRun, source: str, batch_size: int) -> None:
    trained, variants = TrainedRun(run), run.training.variants

    def trace_of(archive: Archive, where: str) -> TokenTrace:
        if archive.calibration is not None and archive.calibration.trace is not None:
            return cast(TokenTrace, archive.calibration.trace)
        return cast(TokenTrace, trained.trace(variants[0].calibration_source(), 64, by_training_reader=True))

    policies = {variant.name: variant.policy for variant in variants}
    entries = [{"name": name, "policy": policy} for name, policy in policies.items() if name != FULL_DEPTH]
    cases = [case for case in table_cases(entries, trained.archive, str(run), trace_of) if case.name in policies]
    rows, references = decoded_rows(trained.archive, source, cases, batch_size)
    layers = list(captioner_of(trained.archive.model).exit_layers)
    rows = [{**row, "depth": layers[-1]} for row in rows]
    write_json(captions_path(run), {"rows": rows, "references": references, "exit_layers": layers})
