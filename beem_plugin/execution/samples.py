"""Samples without their padding, so that an engine can batch them anew in any way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import DataError

TOKEN_FIELDS = ("input_ids", "token_type_ids")


@dataclass
class Samples:
    """
    The tokens of a number of samples, one after the other.

    # Parameters

    tokens : `dict[str, Tensor]`
        `input_ids`, and `token_type_ids` where there are such: each `(all tokens,)` int64. There may be padding between
        two samples.
    starts : `Tensor`
        `(samples,)` int64 on the CPU: where each sample begins in `tokens`.
    lengths : `Tensor`
        `(samples,)` int64 on the CPU.
    index : `Tensor`
        `(samples,)` int64 on the CPU: the samples' positions in the input.
    pad_token_id : `int`, optional (default = `0`)
    """

    tokens: dict[str, Tensor]
    starts: Tensor
    lengths: Tensor
    index: Tensor
    pad_token_id: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, rows: Tensor) -> Samples:
        """The samples at `rows`, in that order; the tokens stay where they are."""
        return Samples(self.tokens, self.starts[rows], self.lengths[rows], self.index[rows], self.pad_token_id)

    def to(self, device: torch.device) -> Samples:
        """The same samples with their tokens on `device`."""
        if device.type == "cpu":
            return self
        moved = {name: to_device(value, device) for name, value in self.tokens.items()}
        return Samples(moved, self.starts, self.lengths, self.index, self.pad_token_id)

    def batch(self, first: int, last: int, length: int | None = None, always_mask: bool = False) -> dict[str, Tensor]:
        """
        Samples `first` to `last - 1` as a padded batch on the device of the tokens.

        # Parameters

        length : `int`, optional (default = the longest of them)
            Tokens to pad to.
        always_mask : `bool`, optional (default = `False`)
            Give an `attention_mask` also where nothing is padding; without one, attention runs faster.
        """
        lengths, starts = self.lengths[first:last], self.starts[first:last]
        longest = int(lengths.max()) if length is None else length
        device = self.tokens["input_ids"].device
        if int(lengths.min()) == longest and last - first == 1 and not always_mask:
            start = int(starts[0])
            return {name: value[start : start + longest][None] for name, value in self.tokens.items()}
        position = torch.arange(longest, device=device)
        starts, lengths_there = all_to_device((starts, lengths), device)
        where = starts[:, None] + position
        if int(lengths.min()) == longest and not always_mask:
            return {name: value[where] for name, value in self.tokens.items()}
        real = position < lengths_there[:, None]
        where = torch.where(real, where, 0)
        padded = {
            name: value[where].masked_fill_(~real, self.pad_token_id if name == "input_ids" else 0)
            for name, value in self.tokens.items()
        }
        return {**padded, "attention_mask": real}


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """
    `tensor`, which is on the CPU, on `device`, without waiting for what is queued there: from ordinary memory a copy of
    more than 64 KiB does.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def all_to_device(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Several int64 tensors of one dimension, in one copy; see `to_device`."""
    if device.type != "cuda":
        return tuple(tensors)
    return torch.cat(list(tensors)).pin_memory().to(device, non_blocking=True).split([len(one) for one in tensors])


def unpad(batch: dict[str, Tensor], pad_token_id: int = 0, position: int = 0) -> Samples:
    """
    # Parameters

    batch : `dict[str, Tensor]`
        As collated: `input_ids (batch, tokens)`, optionally `attention_mask`, `token_type_ids` and `index`.
    pad_token_id : `int`, optional (default = `0`)
    position : `int`, optional (default = `0`)
        The index of the first sample if the batch has no `index`.

    # Raises

    `DataError`
        If a sample is padded anywhere but on the right.
    """
    input_ids = batch["input_ids"].cpu()
    size, longest = input_ids.shape
    index = batch["index"].cpu() if "index" in batch else torch.arange(position, position + size)
    fields = {name: batch[name].cpu() for name in TOKEN_FIELDS if name in batch}
    starts = torch.arange(0, size * longest, longest) if size else torch.arange(0)
    if "attention_mask" not in batch:
        return Samples(whole(fields), starts, torch.full((size,), longest), index, pad_token_id)
    there = mask_here(batch["attention_mask"])
    lengths_here = lengths_of(there)
    lengths = torch.from_numpy(lengths_here)
    # A little padding may stay where it is, which costs less than to look for it.
    if 2 * int(lengths_here.sum()) >= there.size:
        return Samples(whole(fields), starts, lengths, index, pad_token_id)
    real = torch.from_numpy(there).bool()
    tokens = {name: value[real] for name, value in fields.items()}
    return Samples(tokens, lengths.cumsum(0) - lengths, lengths, index, pad_token_id)


def mask_here(attention_mask: Tensor) -> np.ndarray:
    """An attention mask of any dtype on the CPU; NumPy's calls take less than torch's, and small batches need many."""
    mask = attention_mask.cpu()
    # NumPy has no bfloat16, and counts uint8 in a dtype that torch does not compare.
    return (mask if mask.dtype in (torch.int64, torch.bool) else mask != 0).numpy()


def lengths_of(there: np.ndarray) -> np.ndarray:
    """
    How many tokens each sample has.

    # Parameters

    there : `np.ndarray`
        `(batch, tokens)`, as `mask_here` gives it.

    # Returns

    `np.ndarray`
        `(batch,)` int64

    # Raises

    `DataError`
        If a sample is padded anywhere but on the right, or consists of padding.
    """
    lengths: np.ndarray = there.sum(1)
    longest = there.shape[1]
    if int(lengths.sum()) == there.size and longest:
        return lengths
    first_padding = there.argmin(1) if there.size else lengths
    if (lengths == 0).any() or ((first_padding != lengths) & (lengths < longest)).any():
        raise DataError(
            "attention_mask: found padding before a token, or a sample without tokens; allowed: padding on the right"
        )
    return lengths


def whole(fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """The samples of a batch with their padding, end to end."""
    return {name: value.reshape(-1) for name, value in fields.items()}


def join(parts: list[Samples], pinned: bool = False) -> Samples:
    """The samples of all `parts`, in their order; their tokens in pinned memory where a GPU is to read them."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.tokens)
    tokens = {name: joined([tokens_of(part, name) for part in parts], pinned) for name in names}
    offsets = itertools.accumulate((len(part.tokens["input_ids"]) for part in parts), initial=0)
    starts = torch.cat([part.starts + offset for part, offset in zip(parts, offsets)])
    lengths, index = (torch.cat([getattr(part, name) for part in parts]) for name in ("lengths", "index"))
    return Samples(tokens, starts, lengths, index, parts[0].pad_token_id)


def tokens_of(samples: Samples, name: str) -> Tensor:
    """A field of all tokens: zeros, which say nothing, where the samples came without it."""
    found = samples.tokens.get(name)
    return torch.zeros_like(samples.tokens["input_ids"]) if found is None else found


def joined(parts: list[Tensor], pinned: bool) -> Tensor:
    """The numbers of all `parts`."""
    total = sum(len(part) for part in parts)
    return torch.cat(parts, out=torch.empty(total, dtype=parts[0].dtype, pin_memory=pinned))


def windows(
    batches: Iterable[dict[str, Tensor]],
    max_tokens: int,
    pad_token_id: int = 0,
    first_tokens: int | None = None,
    growth: int = 2,
    pinned: bool = False,
) -> Iterator[Samples]:
    """
    Successive stretches of the input of at most so many tokens, but at least one batch each.

    # Parameters

    batches : `Iterable[dict[str, Tensor]]`
    max_tokens : `int`
    pad_token_id : `int`, optional (default = `0`)
    first_tokens : `int`, optional (default = `max_tokens`)
        Of the first window, so that work begins before much has been read.
    growth : `int`, optional (default = `2`)
        How much more than the last window the next one may hold, up to `max_tokens`.
    pinned : `bool`, optional (default = `False`)
        See `join`.
    """
    limit = min(max_tokens, first_tokens or max_tokens)
    held: list[Samples] = []
    tokens = seen = 0
    for batch in batches:
        part = unpad(batch, pad_token_id, seen)
        if len(part) == 0:
            continue
        more = int(part.lengths.sum())
        if held and tokens + more > limit:
            yield join(held, pinned)
            held, tokens, limit = [], 0, min(max_tokens, growth * limit)
        held.append(part)
        seen, tokens = seen + len(part), tokens + more
    if held:
        yield join(held, pinned)


def pad_token_of(network: object) -> int:
    """The padding id of the network's backbone, 0 if it names none."""
    config = getattr(getattr(network, "backbone", None), "config", None)
    return getattr(config, "pad_token_id", None) or 0
