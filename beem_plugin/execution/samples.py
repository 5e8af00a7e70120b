"""Samples without their padding, so that an engine can batch them anew in any way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beem_plugin.common.errors import DataError

TOKEN_FIELDS = ("input_ids", "token_type_ids")


@dataclass
class Samples:
    """
    The tokens of a number of samples, end to end.

    # Parameters

    tokens : `dict[str, Tensor]`
        `input_ids`, and `token_type_ids` where there are such: each `(all tokens,)` int64.
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
        where = to_device(starts, device)[:, None] + position
        if int(lengths.min()) == longest and not always_mask:
            return {name: value[where] for name, value in self.tokens.items()}
        real = position < to_device(lengths, device)[:, None]
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
    mask = batch["attention_mask"].cpu().bool() if "attention_mask" in batch else torch.ones_like(input_ids).bool()
    lengths = mask.sum(1)
    if not bool((mask == (torch.arange(longest) < lengths[:, None])).all()) or (size and int(lengths.min()) == 0):
        raise DataError(
            "attention_mask: found padding before a token, or a sample without tokens; allowed: padding on the right"
        )
    tokens = {name: batch[name].cpu()[mask] for name in TOKEN_FIELDS if name in batch}
    return Samples(tokens, lengths.cumsum(0) - lengths, lengths, index, pad_token_id)


def join(parts: list[Samples]) -> Samples:
    """The samples of all `parts`, in their order."""
    if len(parts) == 1:
        return parts[0]
    lengths = torch.cat([part.lengths for part in parts])
    tokens = {name: torch.cat([part.tokens[name] for part in parts]) for name in parts[0].tokens}
    index = torch.cat([part.index for part in parts])
    return Samples(tokens, lengths.cumsum(0) - lengths, lengths, index, parts[0].pad_token_id)


def windows(
    batches: Iterable[dict[str, Tensor]], max_tokens: int, pad_token_id: int = 0, first_tokens: int | None = None
) -> Iterator[Samples]:
    """
    Successive stretches of the input of at most so many tokens, but at least one batch each.

    # Parameters

    batches : `Iterable[dict[str, Tensor]]`
    max_tokens : `int`
    pad_token_id : `int`, optional (default = `0`)
    first_tokens : `int`, optional (default = `max_tokens`)
        Of the first window. Those that follow grow fourfold, so that work begins before much has been read.
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
            yield join(held)
            held, tokens, limit = [], 0, min(max_tokens, 4 * limit)
        held.append(part)
        seen, tokens = seen + len(part), tokens + more
    if held:
        yield join(held)


def pad_token_of(network: object) -> int:
    """The padding id of the network's backbone, 0 if it names none."""
    config = getattr(getattr(network, "backbone", None), "config", None)
    return getattr(config, "pad_token_id", None) or 0
