"""Images with their references, and the classes of words by which the depth of captions is reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.caption_metrics.tokens import simple_tokens
from beem_plugin.common.errors import DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.instance import Instance
from beem_plugin.decoding.caption_record import caption_record
from beem_plugin.decoding.generated import GeneratedCaption

_FUNCTION_WORDS = """
a an the and or but of in on at to by for with from into onto over under near next behind beside between through across
along around up down out off above below is are was were be being been am has have had do does did it its his her their
he she they them him this that these those there as while who which some each other one s
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English articles, conjunctions, prepositions, auxiliaries and pronouns, as far as captions have them."""

WORD_CLASSES = ("first", "function", "content", "end")


def exits_by_class(
    captions: Sequence[GeneratedCaption], tokenizer: CaptionTokenizer, num_exits: int
) -> dict[str, dict[str, Any]]:
    """
    # Parameters

    captions : `Sequence[GeneratedCaption]`
    tokenizer : `CaptionTokenizer`
    num_exits : `int`

    # Returns

    `dict[str, dict[str, Any]]`
        By class, as far as there are any: `tokens`, `average_exit`, and `exit_histogram`, how many left at each exit. A
        word of several tokens counts with each of them; `end` is the end token.
    """
    found: dict[str, list[int]] = {name: [] for name in WORD_CLASSES}
    for caption in captions:
        for number, (word, positions) in enumerate(tokenizer.words(caption.tokens)):
            kind = "first" if number == 0 else "function" if word.lower() in FUNCTION_WORDS else "content"
            found[kind] += [caption.exits[position] for position in positions]
        if tokenizer.eos_token_id in caption.tokens[-1:]:
            found["end"].append(caption.exits[-1])
    return {
        name: {
            "tokens": len(exits),
            "average_exit": sum(exits) / len(exits),
            "exit_histogram": [exits.count(number) for number in range(1, num_exits + 1)],
        }
        for name, exits in found.items()
        if exits
    }


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


def depths(
    captions: Sequence[GeneratedCaption], tokenizer: CaptionTokenizer, exit_layers: Sequence[int]
) -> dict[str, Any]:
    """How deep tokens went, all of them and by class of word; and how long captions are."""
    exits = torch.tensor([number for caption in captions for number in caption.exits], dtype=torch.int64)
    unfinished = repeating = 0
    for caption in captions:
        unfinished += tokenizer.eos_token_id not in caption.tokens[-1:]
        words = tokenizer.words(caption.tokens)
        repeating += any(one == other for (one, _), (other, _) in zip(words, words[1:]))
    by_class = exits_by_class(captions, tokenizer, len(exit_layers))
    return {
        **depth_summary(exits, exit_layers),
        "average_exit_by_word": {name: found["average_exit"] for name, found in by_class.items()},
        "exit_histogram_by_word": {name: found["exit_histogram"] for name, found in by_class.items()},
        "tokens": len(exits),
        "distinct_captions": len({tuple(caption.tokens) for caption in captions}),
        "unfinished_captions": unfinished,
        "repeating_captions": repeating,
    }


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
