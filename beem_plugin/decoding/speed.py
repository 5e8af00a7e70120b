"""Decoded captions: cost and depth in layers and multiply-accumulates, and depth by class of word."""

from collections.abc import Sequence
from typing import Any

import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.decoding.decoding import Decoded
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs, full_depth


def decoded_speed(network: Any, decoded: Sequence[Decoded]) -> dict[str, Any]:
    """
    Of batches decoded by `network`: `layer_speedup` and the other keys of `depth_summary`, over tokens, EOS included;
    `mac_speedup`: multiply-accumulates of full depth with the last head alone, for captions of the same lengths, over
    those spent in total; `decoder_mac_speedup`: the same without the image encoder; `gmacs`: those spent on each part;
    `words`: the number of tokens. With an `image_exit` also `encoder_layer_speedup`, the encoder's blocks over those
    run, and `average_encoder_layer`.

    With beams the multiply-accumulates are those of all beams, the tokens those of the best, and `mac_speedup` is
    omitted.
    """
    captions = [caption for part in decoded for caption in part.captions]
    exits = torch.tensor([number for caption in captions for number in caption.exits], dtype=torch.int64)
    spent, full = CaptionMacs(), CaptionMacs()
    for part in decoded:
        spent.add(part.macs)
        full.add(full_depth(network, [len(caption.tokens) for caption in part.captions], part.patches))
    result: dict[str, Any] = {**depth_summary(exits, network.exit_layers), "words": len(exits)}
    if all(part.beams == 1 for part in decoded) and len(exits):
        images = sum(part.full_image_macs for part in decoded)
        result["mac_speedup"] = (images + full.decoder) / spent.total
        result["decoder_mac_speedup"] = full.decoder / spent.decoder
    result.update(encoder_depth(decoded))
    result["gmacs"] = {name: value / 1e9 for name, value in vars(spent).items()}
    return result


def encoder_depth(decoded: Sequence[Decoded]) -> dict[str, float]:
    """`encoder_layer_speedup` and `average_encoder_layer`; empty without an `image_exit`."""
    blocks = [number for part in decoded for number in part.image_blocks or ()]
    if not blocks:
        return {}
    average = sum(blocks) / len(blocks)
    depth = next(part.num_image_blocks for part in decoded if part.image_blocks)
    return {"encoder_layer_speedup": depth / average, "average_encoder_layer": average}


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
    By `WORD_CLASSES`, as far as there are any: `tokens`, `average_exit`, and `exit_histogram`, tokens by exit. A word
    of several tokens counts with each of them; `end` is EOS.
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
