"""One trained captioner under many exit policies: what its captions are worth, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.caption_metrics import DEFAULT_METRICS, CaptionScores, check_metrics, score_captions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.decoding import CaptionDecoding, Decoded, decoded_speed
from beem_plugin.decoding.caption_record import caption_record
from beem_plugin.execution.metering.timing import measure, ratio
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.caption_data import check_references, exits_by_class, one_an_image
from beem_plugin.tasks.caption_speed import FULL_DEPTH, with_skipped
from beem_plugin.tasks.captioning import calibration_trace_of, captioner_of
from beem_plugin.tasks.task import evaluation_loader

KEYS = ("name", "policy", "skipped_blocks", "calibration_target")


@dataclass
class TableCase:
    """
    A row to be made.

    # Parameters

    name : `str`
    policy : `ExitPolicy`
        Calibrated.
    decoding : `CaptionDecoding`
    """

    name: str
    policy: ExitPolicy
    decoding: CaptionDecoding


def table_cases(entries: Any, archive: Archive, where: str, may_be_empty: bool = False) -> list[TableCase]:
    """
    The rows of a policies file, full depth before them. Each entry is `{"name", "policy"}`, where it says so with
    `skipped_blocks`, one way or several, and `calibration_target` (default: the model's). Open numbers are fitted on
    the archive's calibration trace. Without any, where they may be empty, full depth is the only row.
    """
    model = captioner_of(archive.model)
    if not isinstance(entries, list) or not (entries or may_be_empty):
        raise ConfigurationError(f"{where}: expected a list of blocks with name and policy")
    cases = [TableCase(FULL_DEPTH, ExitPolicy.from_params({"type": "final"}), model.decoding)]
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not {"name", "policy"} <= set(entry) or not set(entry) <= set(KEYS):
            raise ConfigurationError(f"{where}: entry {number}: allowed: name and policy, and {', '.join(KEYS[2:])}")
        kinds = entry.get("skipped_blocks")
        policy = calibrated(entry, archive, f"{where}: {entry['name']}")
        if kinds is None or isinstance(kinds, str):
            decoding = model.decoding if kinds is None else with_skipped(model.decoding, kinds)
            cases.append(TableCase(entry["name"], policy, decoding))
        else:
            cases += [TableCase(f"{entry['name']}, {one}", policy, with_skipped(model.decoding, one)) for one in kinds]
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"{where}: found the name {twice[0]!r} twice")
    return cases


def calibrated(entry: Mapping[str, Any], archive: Archive, where: str) -> ExitPolicy:
    model = captioner_of(archive.model)
    policy = ExitPolicy.from_params(Params(dict(entry["policy"])))
    policy.bind(model.exit_layers, model.decoder.num_labels)
    if not policy.is_calibrated:
        trace = calibration_trace_of(archive, where)
        policy.calibrate(trace.judged_by(entry.get("calibration_target", model.calibration_target)))
    return policy


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
    # Parameters

    archive : `Archive`
    source : `str`
        What the validation reader reads.
    cases : `Sequence[TableCase]`
        See `table_cases`; the first is what the others are compared with.
    metrics, spice_jars
        See `score_captions`.
    batch_size : `int`, optional (default = `32`)
        Images decoded together.
    repeats : `int`, optional (default = `3`)
        Of the measurement, after a warm-up; 0 measures nothing.

    # Returns

    `list[dict[str, Any]]`
        A row a case: what `decoded_rows` says of it, and of its scores `metrics`; `cider_difference`, against the first
        case, and `cider_difference_error`, the standard error over images of that difference; `caption_tokenizer`.
    """
    check_metrics(metrics, spice_jars)
    rows, references = decoded_rows(archive, source, cases, batch_size, repeats)
    return scored_rows(rows, references, metrics, spice_jars)


def decoded_rows(
    archive: Archive, source: str, cases: Sequence[TableCase], batch_size: int = 32, repeats: int = 0
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """
    Captions and their cost, not yet scored; the parameters are those of `caption_table`.

    # Returns

    `tuple[list[dict[str, Any]], list[list[str]]]`
        A row a case: `name`; what `decoded_speed` counts; `measured_speedup`, the image encoder included, and
        `decoder_measured_speedup`, without it; `same_as_full_depth`; `by_word_class`, see `exits_by_class`;
        `distinct_captions`, `exit_policy`, `skipped_blocks`, `captions`. And the references of each image, in the order
        of the captions.
    """
    model = captioner_of(archive.model)
    if repeats and model.decoding.image_exit is not None:
        raise ConfigurationError(
            "model.decoding.image_exit: allowed where time is measured: null, as images are encoded before; 0 repeats "
            "measure nothing"
        )
    tokenizer: Any = archive.validation_dataset_reader.tokenizer
    instances = one_an_image(archive.validation_dataset_reader.read(source), source)
    check_references(instances, source)
    batches, order = [], []
    for batch in evaluation_loader(archive, instances, batch_size):
        order += batch["index"].tolist()
        batches.append({"pixel_values": batch["pixel_values"].to(model.device)})
    seconds = timed(model, batches, cases, repeats) if repeats else [{} for _ in cases]
    rows: list[dict[str, Any]] = []
    first: list[str] = []
    for case, times in zip(cases, seconds, strict=True):
        decoded = decode_all(model, batches, case)
        said = [caption for part in decoded for caption in part.captions]
        captions = [caption for _, caption in sorted(zip(order, said, strict=True), key=lambda pair: pair[0])]
        texts = [tokenizer.decode(caption.tokens) for caption in captions]
        first = first or texts
        rows.append(
            {
                "name": case.name,
                **decoded_speed(model.decoder, decoded),
                **times,
                "same_as_full_depth": sum(one == other for one, other in zip(texts, first)) / len(texts),
                "by_word_class": exits_by_class(captions, tokenizer, model.num_exits),
                "distinct_captions": len(set(texts)),
                "exit_policy": case.policy.to_config(),
                "skipped_blocks": type(case.decoding.skipped_blocks).__name__.lower(),
                "captions": [
                    {"image_id": instance.id, **caption_record(caption, tokenizer, model.exit_layers)}
                    for instance, caption in zip(instances, captions, strict=True)
                ],
            }
        )
    return rows, [instance.fields["references"] for instance in instances]


def scored_rows(
    rows: Sequence[Mapping[str, Any]],
    references: Sequence[list[str]],
    metrics: Sequence[str] = DEFAULT_METRICS,
    spice_jars: str | None = None,
) -> list[dict[str, Any]]:
    """`rows` of `decoded_rows` with their scores, compared with the first of them; see `caption_table`."""
    found = score_rows(rows, references, metrics, spice_jars)
    return [
        {
            "name": row["name"],
            "metrics": scores.metrics,
            **cider_difference(scores, found[0]),
            **row,
            "caption_tokenizer": scores.tokenizer,
        }
        for row, scores in zip(rows, found, strict=True)
    ]


def score_rows(
    rows: Sequence[Mapping[str, Any]],
    references: Sequence[list[str]],
    metrics: Sequence[str],
    spice_jars: str | None = None,
) -> list[CaptionScores]:
    """The scores of each row's captions; the same captions are scored once."""
    by_image: dict[Hashable, list[str]] = dict(enumerate(references))
    scored: dict[tuple[str, ...], CaptionScores] = {}
    found = []
    for row in rows:
        texts = tuple(caption["caption"] for caption in row["captions"])
        if texts not in scored:
            scored[texts] = score_captions(dict(enumerate(texts)), by_image, metrics, spice_jars)
        found.append(scored[texts])
    return found


def decode_all(model: MultiExitCaptioner, batches: Sequence[Mapping[str, Tensor]], case: TableCase) -> list[Decoded]:
    return [
        case.decoding.run(model.decoder, case.policy, batch, model.bos_token_id, model.eos_token_id)
        for batch in batches
    ]


def timed(
    model: MultiExitCaptioner, batches: Sequence[Mapping[str, Tensor]], cases: Sequence[TableCase], repeats: int
) -> list[dict[str, Any]]:
    """Seconds of each case's decoder in turns, on images that were encoded before, and of the encoder once a repeat."""
    with torch.inference_mode():
        encoded = [{"image_states": model.decoder.backbone.encode_images(batch["pixel_values"])} for batch in batches]

    def encode() -> Iterator[Tensor]:
        with torch.inference_mode():
            for batch in batches:
                yield model.decoder.backbone.encode_images(batch["pixel_values"])

    def decode(case: TableCase) -> Callable[[], Iterator[list[Decoded]]]:
        return lambda: (decode_all(model, [batch], case) for batch in encoded)

    plans: dict[str, Callable[[], Iterator[Any]]] = {
        f"case {number}": decode(case) for number, case in enumerate(cases)
    }
    timings = measure({"encoder": encode, **plans}, repeats, model.device)
    images, full = timings["encoder"], timings["case 0"]
    found = []
    for name in plans:
        own = timings[name]
        whole = [(e + f) / (e + o) for e, f, o in zip(images.seconds, full.seconds, own.seconds, strict=True)]
        found.append(
            {
                "encoder_seconds": images.median,
                "decoder_seconds": own.median,
                "measured_speedup": statistics.median(whole),
                "decoder_measured_speedup": ratio(full, own),
            }
        )
    return found


def cider_difference(found: CaptionScores, first: CaptionScores) -> dict[str, float]:
    """The mean difference over images, and its standard error."""
    pairs = zip(found.per_image.get("cider", []), first.per_image.get("cider", []))
    differences = [one - other for one, other in pairs]
    if len(differences) < 2:
        return {}
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return {"cider_difference": statistics.fmean(differences), "cider_difference_error": error}
