"""Greedy decoding and beam search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.stepper import Stepper


def greedy(stepper: Stepper, bos: int, eos: int, max_length: int) -> list[GeneratedCaption]:
    """One caption for each image of the cache, which has 1 beam; finished ones are removed from the batch."""
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


IMPOSSIBLE = -1.0e9


@dataclass
class _Beams:
    """
    Captions of several images, `(images, captions, tokens)` or, from the scores on, `(images, captions)`: tokens, their
    exits and log-probabilities, the score by which captions are ranked, whether they are finished, and their lengths.
    """

    tokens: Tensor
    exits: Tensor
    log_probabilities: Tensor
    scores: Tensor
    is_finished: Tensor
    lengths: Tensor

    def take(self, index: Tensor) -> _Beams:
        """The captions at `index`, `(images, kept)`."""
        wide = index.unsqueeze(-1)
        values = vars(self).values()
        return _Beams(*(value.take_along_dim(wide if value.ndim == 3 else index, 1) for value in values))

    def images(self, index: Tensor) -> _Beams:
        return _Beams(*(value.index_select(0, index) for value in vars(self).values()))

    def joined(self, other: _Beams) -> _Beams:
        return _Beams(*(torch.cat(pair, 1) for pair in zip(vars(self).values(), vars(other).values())))

    @classmethod
    def empty(cls, images: int, beams: int, length: int, device: torch.device) -> _Beams:
        tokens = torch.zeros(images, beams, length, dtype=torch.int64, device=device)
        scores = torch.full((images, beams), IMPOSSIBLE, device=device)
        lengths = torch.zeros(images, beams, dtype=torch.int64, device=device)
        return cls(tokens, tokens.clone(), tokens.float(), scores, lengths.bool(), lengths)


def beam_search(
    stepper: Stepper, bos: int, eos: int, max_length: int, length_penalty: float = 1.0, early_stopping: bool = False
) -> list[GeneratedCaption]:
    """
    Beam search as in transformers' `generate` with `num_beams`; at full depth the captions are equal. Every token of
    every beam has its own exit. Images whose captions cannot improve any more are removed from the batch. The stepper's
    cache has the number of beams; the other parameters are those of `CaptionDecoding`.
    """
    cache = stepper.cache
    beams, device = cache.beams, cache.hidden.device
    count = cache.num_rows // beams
    result: list[GeneratedCaption] = [GeneratedCaption() for _ in range(count)]
    active = np.arange(count)
    running = _Beams.empty(count, beams, max_length, device)
    running.scores[:, 0] = 0.0  # the other beams are equal to the first
    finished = _Beams.empty(count, beams, max_length, device)
    tokens = torch.full((count * beams,), bos, dtype=torch.int64, device=device)
    for position in range(max_length):
        scores = stepper.step(tokens, position)
        images, vocabulary = len(active), scores.log_probabilities.shape[-1]
        log_p = scores.log_probabilities.view(images, beams, vocabulary)
        top = (log_p + running.scores.unsqueeze(-1)).flatten(1).topk(2 * beams, dim=-1)
        parent, token = top.indices // vocabulary, top.indices % vocabulary  # (images, 2 beams)
        continued = running.take(parent)
        continued.scores = top.values
        continued.tokens[:, :, position] = token
        exits = torch.from_numpy(scores.exits).to(device).view(images, beams)
        continued.exits[:, :, position] = exits.take_along_dim(parent, 1)
        continued.log_probabilities[:, :, position] = log_p.flatten(1).take_along_dim(top.indices, 1)
        ends = (token == eos) | (position + 1 == max_length)
        # Beams that continue.
        chosen = (top.values + ends * IMPOSSIBLE).topk(beams, dim=-1)
        running = continued.take(chosen.indices)
        running.scores = chosen.values
        origin = parent.take_along_dim(chosen.indices, 1)
        # Finished beams: only the best continuations can finish.
        continued.is_finished = ends.clone()
        continued.is_finished[:, beams:] = False
        continued.scores = top.values / (position + 1) ** length_penalty + ~continued.is_finished * IMPOSSIBLE
        if early_stopping:
            continued.scores = continued.scores + finished.is_finished.all(1, keepdim=True) * IMPOSSIBLE
        continued.lengths = torch.full_like(parent, position + 1)
        merged = finished.joined(continued)
        finished = merged.take(merged.scores.topk(beams, dim=-1).indices)
        # Whether a running caption that ends at this position would rank above the worst finished one.
        possible = running.scores[:, :1] / (position + 1) ** length_penalty
        worst = torch.where(finished.is_finished, finished.scores.amin(1, keepdim=True), IMPOSSIBLE)
        going = (possible > worst).any(1) & ~ends.all(1)
        if early_stopping:
            going &= ~finished.is_finished.all(1)
        kept = going.cpu().numpy().nonzero()[0]
        if len(kept) < images:
            for image in sorted(set(range(images)) - set(kept.tolist())):
                result[active[image]] = caption_of(finished, image)
            if not len(kept):
                break
            active = active[kept]
            index = cache.on_device(kept)
            running, finished, origin = running.images(index), finished.images(index), origin[index]
            cache.keep_images(kept)
        rows = origin + beams * torch.arange(len(active), device=device).unsqueeze(1)
        cache.reorder(rows.flatten().cpu().numpy(), position + 1)
        tokens = running.tokens[:, :, position].flatten()
    return result


def caption_of(beams: _Beams, image: int) -> GeneratedCaption:
    """An image's best caption."""
    length = int(beams.lengths[image, 0])
    columns = beams.tokens, beams.exits, beams.log_probabilities
    tokens, exits, log_probabilities = (column[image, 0, :length].tolist() for column in columns)
    return GeneratedCaption(tokens, exits, log_probabilities, sum(log_probabilities))
