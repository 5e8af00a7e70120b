"""The images of a split with their references, their captions under a policy, and what a benchmark of them times."""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.caption_metrics.scores import simple_tokens
from beem_plugin.common.errors import ConfigurationError, DataError, check_choice
from beem_plugin.common.files import atomic_write
from beem_plugin.common.progress import progress_bar
from beem_plugin.common.ranks import gathered, share
from beem_plugin.common.registry import registered_name
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.instance import Instance
from beem_plugin.decoding import CaptionDecoding, Decoded, GeneratedCaption, SkippedBlocks, decoded_speed
from beem_plugin.decoding.generated import caption_record
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.task import Case, evaluation_loader

Decode = Callable[[Mapping[str, Tensor]], Decoded]
Images = Sequence[Mapping[str, Tensor]]
RATES = {"words": "words", "images": "samples"}
DECODER, TRANSFORMERS = "decoder", "transformers"  # the engines of captions: this package's decoding, and `generate`


def captioner_of(model: Any) -> MultiExitCaptioner:
    """The model, if it is a captioner."""
    if not isinstance(model, MultiExitCaptioner):
        raise ConfigurationError(f"found a model {type(model).__name__}, allowed: multi_exit_captioner")
    return model


def decoder_of(model: Any, **options: Any) -> Decode:
    """The model's captions of a batch with the `options` of its `decode`; costs are NaN if it has `generate` alone."""
    if hasattr(model, "decode"):
        return partial(model.decode, **options)

    def generate(batch: Mapping[str, Tensor]) -> Decoded:
        inputs = {name: value.to(next(model.parameters()).device) for name, value in batch.items()}
        return Decoded(model.generate(inputs, **options), CaptionMacs(images=math.nan))

    return generate


def changed(decoding: CaptionDecoding, skipped_blocks: str | None = None, **values: int | None) -> CaptionDecoding:
    """The same decoding with those values that are not `None`."""
    other = copy.copy(decoding)
    vars(other).update({name: value for name, value in values.items() if value is not None})
    if skipped_blocks is not None:
        other.skipped_blocks = SkippedBlocks.from_params({"type": skipped_blocks})
    return other


def image_batches(archive: Archive, instances: Sequence[Instance], size: int) -> list[dict[str, Tensor]]:
    """`index` and `pixel_values` of all images, on the model's device and in its precision."""
    parameter = next(archive.model.parameters())
    batches = []
    for batch in evaluation_loader(archive, instances, size):
        pixels = batch["pixel_values"]
        if "image_of_row" in batch:
            pixels = pixels[batch["image_of_row"]]
        batches.append({"index": batch["index"], "pixel_values": pixels.to(parameter.device, parameter.dtype)})
    return batches


@torch.inference_mode()
def decode_in_order(
    decode: Decode, batches: Iterable[dict[str, Tensor]], count: int, what: str = ""
) -> tuple[list[GeneratedCaption], list[Decoded]]:
    """The captions of `count` images in the order of `index`, and each batch's result; `what` names the bar."""
    rows: list[int] = []
    parts = []
    with progress_bar(count, what, disable=not what, unit=" images") as bar:
        for batch in share(batches):
            rows += batch["index"].tolist()
            parts.append(decode(batch))
            bar.update(len(batch["index"]))
    rows, parts = gathered(rows), gathered(parts)
    captions = [caption for part in parts for caption in part.captions]
    return [caption for _, caption in sorted(zip(rows, captions, strict=True), key=lambda pair: pair[0])], parts


def one_an_image(instances: Sequence[Instance], source: str) -> list[Instance]:
    """The first instance of each image, with all the captions that its instances have as references."""
    kept: dict[Any, Instance] = {}
    for row, instance in enumerate(instances):
        key = instance.id if instance.id is not None else row
        if key in kept and picture(kept[key]) != picture(instance):
            # Its captions would be taken for those of the other one.
            raise DataError(
                f"{source}: found the id {key!r} of two images, {picture(kept[key])} and {picture(instance)}; allowed: "
                "an id of its own for each image"
            )
        if "references" in instance.fields:
            kept.setdefault(key, instance)
            continue
        if not instance.fields.get("caption"):
            raise DataError(f"{source}: image {key!r} has no caption to be scored against")
        if key not in kept:
            kept[key] = Instance({**instance.fields, "references": []}, instance.encoding, id=instance.id)
        kept[key].fields["references"].append(instance.fields["caption"])
    return list(kept.values())


def picture(instance: Instance) -> Any:
    """The image's file, or the scene that it is drawn from."""
    return instance.fields.get("image", instance.fields.get("scene"))


def check_references(instances: Sequence[Instance], source: str) -> None:
    """Before anything is decoded: each image of `one_an_image` needs a caption that leaves words to be compared."""
    for row, instance in enumerate(instances):
        name = instance.id if instance.id is not None else instance.fields.get("image", row)
        references = instance.fields["references"]
        if not references:
            raise DataError(f"{source}: image {name!r} has no caption to be scored against")
        if not any(simple_tokens(references)):
            raise DataError(f"{source}: image {name!r}: its captions are empty but for punctuation")


def write_captions(
    path: str,
    instances: Sequence[Instance],
    captions: Sequence[GeneratedCaption],
    tokenizer: CaptionTokenizer,
    exit_layers: Sequence[int],
) -> None:
    """COCO's result format, or JSON lines with every word's exit for a name that ends in `.jsonl`."""
    with atomic_write(path) as file:
        if path.endswith(".jsonl"):
            for instance, caption in zip(instances, captions, strict=True):
                record = {"image_id": instance.id, **caption_record(caption, tokenizer, exit_layers)}
                record["references"] = instance.fields["references"]
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            return
        results = [
            {"image_id": instance.id, "caption": tokenizer.decode(caption.tokens)}
            for instance, caption in zip(instances, captions, strict=True)
        ]
        json.dump(results, file, ensure_ascii=False)
        file.write("\n")


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
        check_choice("--skipped-blocks", kind, SkippedBlocks.list_available())
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
