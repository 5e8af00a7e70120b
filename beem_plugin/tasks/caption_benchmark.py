"""The cases of a benchmark of captions: decoding under a policy, at full depth, and transformers' `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import registered_name
from beem_plugin.decoding import CaptionDecoding, Decoded, GeneratedCaption, SkippedBlocks, decoded_speed
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.caption_decoding import Decode, changed
from beem_plugin.tasks.task import Case

Images = Sequence[Mapping[str, Tensor]]
RATES = {"words": "words", "images": "samples"}
DECODER, TRANSFORMERS = "decoder", "transformers"
"""The engines of captions: this package's decoding, and `generate`."""


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
    `decoded_speed` and `same_as_full_depth`, the share of captions that are equal. The model is in evaluation mode, on
    the device of the batches' `pixel_values` and in its precision; by default it decodes as its config says.
    """
    decoding = changed(model.decoding, num_beams=num_beams, max_length=max_length)
    kinds = list(skipped_blocks) or [registered_name(SkippedBlocks, decoding.skipped_blocks)]
    for kind in kinds:
        if kind not in SkippedBlocks.list_available():
            raise ConfigurationError(not_allowed("--skipped-blocks", kind, SkippedBlocks.list_available()))
    found: dict[str, list[Decoded]] = {}

    def case(engine: str, decode: Decode, kind: str | None = None) -> Case:
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
        case(DECODER, partial(model.decode, policy=Final(), decoding=decoding)),
        case(TRANSFORMERS, partial(generate, model, decoding)),
    ]
    for kind in kinds:
        decode = partial(model.decode, policy=policy, decoding=changed(decoding, kind))
        cases.append(case(f"{DECODER}, {kind}", decode, kind))
    return cases


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
