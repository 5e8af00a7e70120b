"""Seconds, layers and multiply-accumulates of captioning under exit policies, against full depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from beem_plugin.decoding import CaptionDecoding, Decoded, SkippedBlocks, decoded_speed
from beem_plugin.execution.metering.timing import Timing, measure, percentiles, ratio
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner

FULL_DEPTH = "full depth"
TRANSFORMERS = "transformers' generate"


def caption_speed(
    model: MultiExitCaptioner,
    batches: Sequence[Mapping[str, Tensor]],
    policies: Mapping[str, ExitPolicy],
    skipped_blocks: Sequence[str] = ("propagate",),
    repeats: int = 5,
    decoding: CaptionDecoding | None = None,
    time_budget: float | None = None,
) -> list[dict[str, Any]]:
    """
    # Parameters

    model : `MultiExitCaptioner`
        In evaluation mode, on the device and in the precision to be measured.
    batches : `Sequence[Mapping[str, Tensor]]`
        Batches with `pixel_values`, on the model's device.
    policies : `Mapping[str, ExitPolicy]`
        By name, calibrated.
    skipped_blocks : `Sequence[str]`, optional (default = `("propagate",)`)
        Each policy is measured with each of these.
    repeats : `int`, optional (default = `5`)
        After a warm-up, in turns.
    decoding : `CaptionDecoding`, optional (default = the model's)
    time_budget : `float`, optional
        Seconds, see `timing.measure`.

    # Returns

    `list[dict[str, Any]]`
        One row a case, first full depth and transformers' `generate` on the same images: `seconds` and how they spread
        over the repeats, `words_per_second`, `images_per_second`, `latency_ms_p50` and its like of a batch,
        `measured_speedup` (against full depth in the same runtime, image encoder included),
        `measured_speedup_over_transformers`, `layer_speedup`, `encoder_layer_speedup`, `mac_speedup`, and
        `same_as_full_depth`, the share of captions that are equal.
    """
    decoding = model.decoding if decoding is None else decoding
    plans: dict[str, tuple[str, ExitPolicy, CaptionDecoding]] = {
        FULL_DEPTH: (FULL_DEPTH, ExitPolicy.from_params({"type": "final"}), decoding)
    }
    for name, policy in policies.items():
        for kind in skipped_blocks:
            plans[f"{name}, {kind}"] = (kind, policy, with_skipped(decoding, kind))
    found: dict[str, list[Decoded]] = {}

    def case(name: str) -> Callable[[], Iterator[Decoded]]:
        _, policy, plan = plans[name]

        def run() -> Iterator[Decoded]:
            found[name] = []
            for batch in batches:
                found[name].append(plan.run(model.decoder, policy, batch, model.bos_token_id, model.eos_token_id))
                yield found[name][-1]

        return run

    said: list[Tensor] = []

    def transformers_case() -> Iterator[Tensor]:
        generator: Any = model.decoder.backbone.transformer_model
        said.clear()
        for batch in batches:
            generated = generator.generate(
                pixel_values=batch["pixel_values"],
                max_new_tokens=decoding.max_length,
                num_beams=decoding.num_beams,
                length_penalty=decoding.length_penalty,
                early_stopping=decoding.early_stopping,
                do_sample=False,
                decoder_start_token_id=model.bos_token_id,
                eos_token_id=model.eos_token_id,
                pad_token_id=model.eos_token_id,
            )
            said.append(generated[:, 1:].cpu())
            yield said[-1]

    cases: dict[str, Callable[[], Iterator[Any]]] = {name: case(name) for name in plans}
    cases[TRANSFORMERS] = transformers_case
    timings = measure(cases, repeats, model.device, time_budget=time_budget, description="captions")
    full = [caption.tokens for part in found[FULL_DEPTH] for caption in part.captions]

    def measured(name: str, captions: Sequence[list[int]]) -> dict[str, Any]:
        timing: Timing = timings[name]
        words = sum(map(len, captions))
        return {
            **timing.summary(),
            "words": words,
            "words_per_second": words / timing.median,
            "images_per_second": len(captions) / timing.median,
            **percentiles(timing.latencies),
            "measured_speedup": ratio(timings[FULL_DEPTH], timing),
            "measured_speedup_over_transformers": ratio(timings[TRANSFORMERS], timing),
            "same_as_full_depth": sum(a == b for a, b in zip(captions, full)) / max(len(full), 1),
        }

    rows: list[dict[str, Any]] = []
    for name, (kind, _, _) in plans.items():
        captions = [caption.tokens for part in found[name] for caption in part.captions]
        row: dict[str, Any] = {"name": name, "skipped_blocks": None if name == FULL_DEPTH else kind}
        rows.append({**row, **decoded_speed(model.decoder, found[name]), **measured(name, captions)})
    theirs = [until_end(row, model.eos_token_id) for part in said for row in part.tolist()]
    rows.insert(1, {"name": TRANSFORMERS, **measured(TRANSFORMERS, theirs)})
    return rows


def until_end(tokens: list[int], eos: int) -> list[int]:
    """The words of a padded row, the end included."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def with_skipped(decoding: CaptionDecoding, kind: str) -> CaptionDecoding:
    """The same decoding with another way to fill in skipped blocks."""
    other = copy.copy(decoding)
    other.skipped_blocks = SkippedBlocks.from_params({"type": kind})
    return other
