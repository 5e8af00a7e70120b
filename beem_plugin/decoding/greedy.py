"""The most probable word, again and again."""

from __future__ import annotations

import numpy as np
import torch

from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.stepper import Stepper


def greedy(stepper: Stepper, bos: int, eos: int, max_length: int) -> list[GeneratedCaption]:
    """
    One caption for each image in the stepper's cache, whose beams are 1. A finished caption leaves the batch.

    # Parameters

    stepper : `Stepper`
    bos, eos : `int`
        The words that start and end a caption.
    max_length : `int`
        The most words, the end included.
    """
    cache = stepper.cache
    captions = [GeneratedCaption() for _ in range(cache.num_rows)]
    live = np.arange(cache.num_rows)
    tokens = torch.full((len(live),), bos, dtype=torch.int64, device=cache.hidden.device)
    for position in range(max_length):
        if not len(live):
            break
        words = stepper.step(tokens, position)
        best = words.log_probabilities.max(-1)
        tokens = best.indices
        host, log_probabilities = tokens.cpu().numpy(), best.values.cpu().tolist()
        for row, image in enumerate(live.tolist()):
            captions[image].tokens.append(int(host[row]))
            captions[image].exits.append(int(words.exits[row]))
            captions[image].log_probabilities.append(log_probabilities[row])
        going = (host != eos).nonzero()[0]
        if len(going) < len(live) and position + 1 < max_length:
            live = live[going]
            if len(live):
                tokens = tokens[cache.on_device(going)]
                cache.keep_images(going)
    for caption in captions:
        caption.score = sum(caption.log_probabilities)
    return captions
