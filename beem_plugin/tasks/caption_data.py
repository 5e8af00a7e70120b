"""Images with their references, and files of captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from beem_plugin.common.caption_metrics.tokens import simple_tokens
from beem_plugin.common.errors import DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.instance import Instance
from beem_plugin.decoding.generated import GeneratedCaption, caption_record


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
