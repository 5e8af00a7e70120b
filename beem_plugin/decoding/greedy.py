"""Greedy decoding: the most probable token at every position."""

from __future__ import annotations

import numpy as np
import torch

from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.stepper import Stepper


def greedy(stepper: Stepper, bos: int, eos: int, max_length: int) -> list[GeneratedCaption]:
    """
    One caption for each image in the stepper's cache, which has 1 beam; `max_length` is the maximum number of new
    tokens, including EOS. Finished captions are removed from the batch.
    """
    cache = stepper.cache
    captions = [GeneratedCaption() for _ in range(cache.num_rows)]
    active = np.arange(cache.num_rows)
    tokens = torch.full((len(active),), bos, dtype=torch.int64, device=cache.hidden.device)
    for position in range(max_length):
        if not len(active):
            break
        scores = stepper.step(tokens, position)
        best = scores.log_probabilities.max(-1)
        tokens = best.indices
        host, log_probabilities = tokens.cpu().numpy(), best.values.cpu().tolist()
        for row, image in enumerate(active.tolist()):
            captions[image].tokens.append(int(host[row]))
            captions[image].exits.append(int(scores.exits[row]))
            captions[image].log_probabilities.append(log_probabilities[row])
        unfinished = (host != eos).nonzero()[0]
        if len(unfinished) < len(active) and position + 1 < max_length:
            active = active[unfinished]
            if len(active):
                tokens = tokens[cache.on_device(unfinished)]
                cache.keep_images(unfinished)
    for caption in captions:
        caption.score = sum(caption.log_probabilities)
    return captions
