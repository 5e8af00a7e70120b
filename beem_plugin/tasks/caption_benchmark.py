"""What `allennlp benchmark` measures of a captioning model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.decoding import CaptionDecoding, SkippedBlocks
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.caption_data import one_an_image
from beem_plugin.tasks.caption_speed import FULL_DEPTH, TRANSFORMERS, caption_speed
from beem_plugin.tasks.engine_benchmark import seconds_with_range, timing_title
from beem_plugin.tasks.task import evaluation_loader

CAPTION_COUNTS = ("layer_speedup", "encoder_layer_speedup", "average_layer", "exit_histogram", "mac_speedup")
"""What is counted of the policy's captions; the rest is measured."""

OWN = "decoder"
"""The engine that captions are decoded by, where a classifier has a choice of them."""


def benchmark_captions(
    model: MultiExitCaptioner,
    policy: ExitPolicy,
    make_batches: Callable[[int], Sequence[dict[str, Tensor]]],
    batch_sizes: Sequence[int],
    skipped_blocks: Sequence[str] = (),
    repeats: int = 5,
    num_beams: int | None = None,
    max_length: int | None = None,
    time_budget: float | None = None,
) -> dict[str, Any]:
    """
    # Parameters

    model : `MultiExitCaptioner`
        On its device, in its precision.
    policy : `ExitPolicy`
        Calibrated.
    make_batches : `Callable[[int], Sequence[dict[str, Tensor]]]`
        The same images in batches of a given size, on the model's device.
    batch_sizes : `Sequence[int]`
    skipped_blocks : `Sequence[str]`, optional (default = the model's own)
        What becomes of skipped blocks: the policy is measured with each of these.
    repeats : `int`, optional (default = `5`)
    num_beams, max_length : `int`, optional (default = the model's)
    time_budget : `float`, optional
        Seconds of each batch size.

    # Returns

    `dict[str, Any]`
        `counted` (of the policy's captions with the first of `skipped_blocks`: `layer_speedup` and its like, over
        words; `mac_speedup`, greedily: full depth is counted for captions of the same lengths, and what a beam search
        costs is not what its best caption does; `evaluate` compares two searches) and `measured`, a row a case and
        batch size; see `caption_speed` for its columns.
    """
    decoding = changed(model.decoding, num_beams, max_length)
    kinds = list(skipped_blocks) or [kind_of(decoding.skipped_blocks)]
    for kind in kinds:
        if kind not in SkippedBlocks.list_available():
            raise ConfigurationError(not_allowed("--skipped-blocks", kind, SkippedBlocks.list_available()))
    policy.check_calibrated()
    rows: list[dict[str, Any]] = []
    counted: dict[str, Any] = {}
    for size in sorted(set(batch_sizes)):
        batches = make_batches(size)
        found = caption_speed(model, batches, {"exits": policy}, kinds, repeats, decoding, time_budget)
        for row in found:
            rows.append(as_measured(row, size))
            if not counted and row["name"] not in (FULL_DEPTH, TRANSFORMERS):
                counted["samples"] = sum(len(batch["pixel_values"]) for batch in batches)
                counted["words"] = row["words"]
                counted.update({name: row[name] for name in CAPTION_COUNTS if name in row})
    return {"counted": counted, "measured": rows}


def as_measured(row: dict[str, Any], size: int) -> dict[str, Any]:
    """A row of `caption_speed` with the columns that every benchmark starts with; nested values stay in JSON alone."""
    name, kind = row["name"], row.get("skipped_blocks")
    first = {
        "engine": "transformers" if name == TRANSFORMERS else OWN if kind is None else f"{OWN}, {kind}",
        "case": "full_depth" if name in (FULL_DEPTH, TRANSFORMERS) else "exits",
        "batch_size": size,
    }
    rest = {key: value for key, value in row.items() if key not in ("name", "gmacs", "exit_histogram")}
    if first["case"] == "exits":
        rest["measured_over_layer_speedup"] = row["measured_speedup"] / row["layer_speedup"]
    return {**first, **rest}


def changed(decoding: CaptionDecoding, num_beams: int | None, max_length: int | None) -> CaptionDecoding:
    """The same decoding with other beams or another length."""
    for flag, value in (("--num-beams", num_beams), ("--max-length", max_length)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{flag}: found {value}, allowed: 1 or more")
    other = copy.copy(decoding)
    other.num_beams = decoding.num_beams if num_beams is None else num_beams
    other.max_length = decoding.max_length if max_length is None else max_length
    return other


def kind_of(skipped_blocks: SkippedBlocks) -> str:
    """The registered name."""
    names = SkippedBlocks.list_available()
    return next(name for name in names if type(skipped_blocks) is SkippedBlocks.by_name(name))


def image_batches_by_size(
    archive: Archive, source: str, max_instances: int | None
) -> Callable[[int], list[dict[str, Tensor]]]:
    """Makes batches of the data's images, each image once, of any size on the model's device."""
    instances = one_an_image(archive.validation_dataset_reader.read(source), source)[:max_instances]
    if not instances:
        raise ConfigurationError(f"{source}: found no image to measure on")
    parameter = next(archive.model.parameters())

    def make(size: int) -> list[dict[str, Tensor]]:
        batches = []
        for batch in evaluation_loader(archive, instances, size):
            pixels = batch["pixel_values"]
            if "image_of_row" in batch:
                pixels = pixels[batch["image_of_row"]]
            batches.append({"pixel_values": pixels.to(parameter.device, parameter.dtype)})
        return batches

    return make


def caption_benchmark_table(report: dict[str, Any]) -> Table:
    """The report of `benchmark_captions`, with what it ran on, as a table."""
    counted = report["counted"]
    parts = [f"layer speed-up {counted['layer_speedup']:.3f}x by words"]
    if "encoder_layer_speedup" in counted:
        parts.append(f"of the image encoder {counted['encoder_layer_speedup']:.3f}x")
    if "mac_speedup" in counted:
        parts.append(f"multiply-accumulates (images and heads included) {counted['mac_speedup']:.3f}x")
    else:
        parts.append("multiply-accumulates not compared with beams, of which only the best has a length")
    columns = [Column("batch", digits=0), *text("engine", "case", "seconds"), Column("words/s", digits=0)]
    columns += [Column("images/s", digits=1), *text("ms p50 / p95 a batch"), Column("peak MiB", digits=0)]
    columns += [Column("MACs", digits=3, unit="x"), Column("speed-up", digits=3, unit="x")]
    columns += [Column("vs transformers", unit="x"), Column("same", digits=0, unit=" %", factor=100)]
    table = Table(columns, title=timing_title(report))
    for row in report["measured"]:
        cells = [row["batch_size"], row["engine"], row["case"].replace("_", " "), seconds_with_range(row)]
        cells += [row["words_per_second"], row["images_per_second"]]
        cells += [f"{row['latency_ms_p50']:.1f} / {row['latency_ms_p95']:.1f}", row["peak_memory_mib"]]
        cells += [row.get("mac_speedup"), row["measured_speedup"], row["measured_speedup_over_transformers"]]
        table.rows.append([*cells, row["same_as_full_depth"]])
    histogram = " ".join(map(str, counted["exit_histogram"]))
    table.notes = [
        f"{report['device']}, {report['threads']} threads, {counted['samples']} images",
        f"counted: {', '.join(parts)}; left at exit 1, 2, ...: {histogram}",
    ]
    return table
