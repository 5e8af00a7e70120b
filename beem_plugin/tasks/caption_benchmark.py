"""The cases of a benchmark of captions: decoding under a policy, at full depth, and transformers' `generate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import registered_name
from beem_plugin.decoding import CaptionDecoding, Decoded, GeneratedCaption, SkippedBlocks, decoded_speed
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.caption_data import one_an_image
from beem_plugin.tasks.task import Case, evaluation_loader

Images = Sequence[Mapping[str, Tensor]]
RATES = {"words": "words", "images": "samples"}
DECODER, TRANSFORMERS = "decoder", "transformers"
"""The engines of captions: this package's decoding, and `generate`."""


def image_batches_by_size(archive: Archive, source: str, max_instances: int | None) -> Callable[[int], Images]:
    """Makes batches of the data's images, each image once, of any size on the model's device."""
    instances = one_an_image(archive.validation_dataset_reader.read(source), source)[:max_instances]
    if not instances:
        raise ConfigurationError(f"{source}: found no image to measure on")
    parameter = next(archive.model.parameters())

    def make(size: int) -> Images:
        batches = []
        for batch in evaluation_loader(archive, instances, size):
            pixels = batch["pixel_values"]
            if "image_of_row" in batch:
                pixels = pixels[batch["image_of_row"]]
            batches.append({"pixel_values": pixels.to(parameter.device, parameter.dtype)})
        return batches

    return make


def caption_cases(
    model: MultiExitCaptioner,
    policy: ExitPolicy,
    batches: Images,
    skipped_blocks: Sequence[str] = (),
    num_beams: int | None = None,
    max_length: int | None = None,
) -> list[Case]:
    """
    Full depth, transformers' `generate`, and the policy with each of `skipped_blocks`. Their counts are those of
    `decoded_speed` and `same_as_full_depth`, the share of captions that are equal.

    # Parameters

    model : `MultiExitCaptioner`
        In evaluation mode, on its device, in its precision.
    policy : `ExitPolicy`
    batches : `Sequence[Mapping[str, Tensor]]`
        With `pixel_values`, on the model's device.
    skipped_blocks : `Sequence[str]`, optional (default = the model's own)
    num_beams, max_length : `int`, optional (default = the model's)
    """
    decoding = changed(model.decoding, num_beams=num_beams, max_length=max_length)
    kinds = list(skipped_blocks) or [registered_name(SkippedBlocks, decoding.skipped_blocks)]
    for kind in kinds:
        if kind not in SkippedBlocks.list_available():
            raise ConfigurationError(not_allowed("--skipped-blocks", kind, SkippedBlocks.list_available()))
    found: dict[str, list[Decoded]] = {}

    def case(engine: str, decode: Callable[[Mapping[str, Tensor]], Decoded], kind: str | None = None) -> Case:
        def run() -> Iterator[Decoded]:
            found[engine] = []
            for batch in batches:
                found[engine].append(decode(batch))
                yield found[engine][-1]

        def counts() -> dict[str, Any]:
            tokens, full = tokens_of(found[engine]), tokens_of(found[DECODER])
            own = engine != TRANSFORMERS
            row = {"skipped_blocks": kind, **decoded_speed(model.decoder, found[engine])} if own else {}
            same = sum(one == other for one, other in zip(tokens, full, strict=True)) / max(len(full), 1)
            return row | {"samples": len(tokens), "words": sum(map(len, tokens)), "same_as_full_depth": same}

        return Case(engine, "full_depth" if kind is None else "exits", run, counts, RATES, DECODER)

    cases = [
        case(DECODER, partial(decode, model, Final(), decoding)),
        case(TRANSFORMERS, partial(generate, model, decoding)),
    ]
    for kind in kinds:
        cases.append(case(f"{DECODER}, {kind}", partial(decode, model, policy, changed(decoding, kind)), kind))
    return cases


def decode(
    model: MultiExitCaptioner, policy: ExitPolicy, decoding: CaptionDecoding, batch: Mapping[str, Tensor]
) -> Decoded:
    return decoding.run(model.decoder, policy, batch, model.bos_token_id, model.eos_token_id)


def tokens_of(decoded: Sequence[Decoded]) -> list[list[int]]:
    return [caption.tokens for part in decoded for caption in part.captions]


def generate(model: MultiExitCaptioner, decoding: CaptionDecoding, batch: Mapping[str, Tensor]) -> Decoded:
    """The captions of transformers' `generate`."""
    generator: Any = model.decoder.backbone.transformer_model
    end = model.eos_token_id
    rows = generator.generate(
        pixel_values=batch["pixel_values"],
        max_new_tokens=decoding.max_length,
        num_beams=decoding.num_beams,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        do_sample=False,
        decoder_start_token_id=model.bos_token_id,
        eos_token_id=end,
        pad_token_id=end,
    )[:, 1:].tolist()
    kept = [row[: row.index(end) + 1] if end in row else row for row in rows]
    return Decoded([GeneratedCaption(row) for row in kept], CaptionMacs())


def changed(decoding: CaptionDecoding, skipped_blocks: str | None = None, **values: int | None) -> CaptionDecoding:
    """The same decoding with those values that are not `None`."""
    other = copy.copy(decoding)
    vars(other).update({name: value for name, value in values.items() if value is not None})
    if skipped_blocks is not None:
        other.skipped_blocks = SkippedBlocks.from_params({"type": skipped_blocks})
    return other
