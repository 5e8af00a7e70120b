"""A trained captioner under many exit policies: its captions, kept beside a training, their scores and their cost."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.caption_metrics import DEFAULT_METRICS, check_metrics
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.strict_json import read_json
from beem_plugin.comparison.caption_scores import FULL_DEPTH, cider_difference, score_rows
from beem_plugin.comparison.result import build
from beem_plugin.comparison.trainings.runs import TrainingRun
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.decoding import CaptionDecoding, decoded_speed
from beem_plugin.decoding.generated import caption_record
from beem_plugin.decoding.speed import exits_by_class
from beem_plugin.execution.metering.timing import measure, ratio
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.caption_decoding import (
    Decode,
    captioner_of,
    changed,
    check_references,
    decode_in_order,
    decoder_of,
    image_batches,
    one_an_image,
)
from beem_plugin.tasks.captioning import calibration_trace_of
from beem_plugin.tasks.task import read_instances

KEYS = ("name", "policy", "skipped_blocks", "calibration_target")


@dataclass
class TableCase:
    """A row to be made: a calibrated policy and how skipped blocks are filled in."""

    name: str
    policy: ExitPolicy
    decoding: CaptionDecoding

    def decoder(self, model: MultiExitCaptioner) -> Decode:
        return decoder_of(model, policy=self.policy, decoding=self.decoding)


def table_cases(
    entries: Any, archive: Archive, where: str, trace_of: Callable[[Archive, str], TokenTrace] = calibration_trace_of
) -> list[TableCase]:
    """
    The rows of a policies file, after full depth. Each entry is `{"name", "policy"}`, optionally with `skipped_blocks`,
    one way or several, and `calibration_target` (default: the model's). Parameters that are not set are fitted on
    `trace_of` the archive.
    """
    model = captioner_of(archive.model)
    if not isinstance(entries, list):
        raise ConfigurationError(f"{where}: expected a list of blocks with name and policy")
    cases = [TableCase(FULL_DEPTH, Final(), model.decoding)]
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not {"name", "policy"} <= set(entry) or not set(entry) <= set(KEYS):
            raise ConfigurationError(f"{where}: entry {number}: allowed: name and policy, and {', '.join(KEYS[2:])}")
        kinds, name = entry.get("skipped_blocks"), entry["name"]
        policy = build(entry["policy"], model.exit_network)
        if not policy.is_calibrated:
            trace = trace_of(archive, f"{where}: {name}")
            policy.calibrate(trace.judged_by(entry.get("calibration_target", model.calibration_target)))
        several = isinstance(kinds, list)
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            cases.append(TableCase(f"{name}, {kind}" if several else name, policy, changed(model.decoding, kind)))
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"{where}: found the name {twice[0]!r} twice")
    return cases


def caption_table(
    archive: Archive,
    source: str,
    cases: Sequence[TableCase],
    metrics: Sequence[str] = DEFAULT_METRICS,
    spice_jars: str | None = None,
    batch_size: int = 32,
    repeats: int = 3,
) -> list[dict[str, Any]]:
    """
    The rows of `decoded_rows` with `metrics`, see `score_captions`, `cider_difference` from the first case,
    `cider_difference_error`, its standard error over images, and `caption_tokenizer`. `repeats` are those of the
    measurement, after a warm-up; 0 measures nothing.
    """
    check_metrics(metrics, spice_jars)
    rows, references = decoded_rows(archive, source, cases, batch_size, repeats)
    found = score_rows(rows, references, metrics, spice_jars)
    for row, scores in zip(rows, found, strict=True):
        row |= {"metrics": scores.metrics, **cider_difference(scores, found[0]), "caption_tokenizer": scores.tokenizer}
    return rows


def decoded_rows(
    archive: Archive, source: str, cases: Sequence[TableCase], batch_size: int = 32, repeats: int = 0
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """
    Captions and their cost, not yet scored; and the references of each image, in the order of the captions.

    A row a case has `name`; the counts of `decoded_speed`; `measured_speedup`, the image encoder included, and
    `decoder_measured_speedup`, without it; `same_as_full_depth`; `by_word_class`, see `exits_by_class`;
    `distinct_captions`, `exit_policy`, `skipped_blocks`, `captions`.
    """
    model = captioner_of(archive.model)
    if repeats and model.decoding.image_exit is not None:
        raise ConfigurationError(
            "model.decoding.image_exit: allowed where time is measured: null, as images are encoded before; 0 repeats "
            "measure nothing"
        )
    tokenizer: Any = archive.validation_dataset_reader.tokenizer
    instances = one_an_image(read_instances(archive, source), source)
    check_references(instances, source)
    batches = image_batches(archive, instances, batch_size)
    seconds = timed(model, batches, cases, repeats) if repeats else [{} for _ in cases]
    rows: list[dict[str, Any]] = []
    first: list[str] = []
    for case, times in zip(cases, seconds, strict=True):
        captions, parts = decode_in_order(case.decoder(model), batches, len(instances))
        texts = [tokenizer.decode(caption.tokens) for caption in captions]
        first = first or texts
        row = {"name": case.name, **decoded_speed(model.decoder, parts), **times}
        row["same_as_full_depth"] = sum(one == other for one, other in zip(texts, first)) / len(texts)
        row["by_word_class"] = exits_by_class(captions, tokenizer, model.num_exits)
        row |= {"distinct_captions": len(set(texts)), "exit_policy": case.policy.to_config()}
        row["skipped_blocks"] = type(case.decoding.skipped_blocks).__name__.lower()
        row["captions"] = [
            {"image_id": instance.id, **caption_record(caption, tokenizer, model.exit_layers)}
            for instance, caption in zip(instances, captions, strict=True)
        ]
        rows.append(row)
    return rows, [instance.fields["references"] for instance in instances]


def timed(
    model: MultiExitCaptioner, batches: Sequence[Mapping[str, Tensor]], cases: Sequence[TableCase], repeats: int
) -> list[dict[str, Any]]:
    """Seconds of each case's decoder, on images that were encoded before, and of the image encoder alone."""

    @torch.inference_mode()
    def encode(batch: Mapping[str, Tensor]) -> Tensor:
        return model.decoder.backbone.encode_images(batch["pixel_values"])

    encoded = [{"image_states": encode(batch)} for batch in batches]
    runs: dict[str, Callable[[], Iterable[Any]]] = {"encoder": partial(map, encode, batches)}
    for number, case in enumerate(cases):
        runs[f"case {number}"] = partial(map, case.decoder(model), encoded)
    images, *timings = measure(runs, repeats, model.device).values()
    found = []
    for own in timings:
        seconds = zip(images.seconds, timings[0].seconds, own.seconds, strict=True)
        speedup = statistics.median((image + full) / (image + one) for image, full, one in seconds)
        measured = {"measured_speedup": speedup, "decoder_measured_speedup": ratio(timings[0], own)}
        found.append({"encoder_seconds": images.median, "decoder_seconds": own.median, **measured})
    return found


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
