"""
GPU kernels for what takes longest beside the matrix products: attention among few tokens, the sum of two tensors
normalised, and the embeddings. torch's own attention is made for long inputs and, with a bias of positions, for sixteen
tokens costs several times what their products cost; layer by layer, half of a small batch's kernels are those that add,
scale, copy and mask.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two

if TYPE_CHECKING:
    from beem_plugin.backbones.packed import Packed

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

MOST_TOKENS = 128
"""All scores of a head are held at once."""
WARPS = {16: 1, 32: 2, 64: 4, 128: 8}
DTYPES = (torch.float16, torch.bfloat16)

if triton is not None:
    # Numbers that differ from batch to batch, of which no kernel should be made each.
    @triton.jit(do_not_specialize=["first", "tokens", "head_stride", "from_stride"])
    def attention(
        query,
        key,
        value,
        bias,
        real,
        starts,
        lengths,
        heard,
        first,
        tokens,
        scale,
        row_stride,
        out_stride,
        head_stride,
        from_stride,
        HEADS: tl.constexpr,
        SIZE: tl.constexpr,
        BLOCK: tl.constexpr,
        HAS_BIAS: tl.constexpr,
        HAS_PADDING: tl.constexpr,
        PACKED: tl.constexpr,
    ):
        """One head of one sample: scores, softmax and the mean of the values, in float32 between the products."""
        sample = first + (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        if PACKED:
            begin = tl.load(starts + sample)
            tokens = tl.load(lengths + sample)
        else:
            begin = sample * tokens
        place = tl.arange(0, BLOCK)
        column = tl.arange(0, SIZE)
        inside = place < tokens
        where = (begin + place[:, None]) * row_stride + head * SIZE + column[None, :]
        asked = tl.load(query + where, mask=inside[:, None], other=0.0)
        known = tl.load(key + where, mask=inside[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(known)) * scale
        if HAS_BIAS:
            pair = head * head_stride + place[:, None] * from_stride + place[None, :]
            scores += tl.load(bias + pair, mask=inside[:, None] & inside[None, :], other=0.0).to(tl.float32)
        counts = inside
        if HAS_PADDING:
            counts = counts & (tl.load(real + begin + place, mask=inside, other=0) != 0)
        scores = tl.where(counts[None, :], scores, -1e30)
        weight = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        total = tl.sum(weight, axis=1)
        said = tl.load(value + where, mask=inside[:, None], other=0.0)
        result = tl.dot(weight.to(said.dtype), said) / total[:, None]
        target = (begin + place[:, None]) * out_stride + head * SIZE + column[None, :]
        tl.store(heard + target, result.to(heard.dtype.element_ty), mask=inside[:, None])

    @triton.jit
    def add_norm(first, second, weight, bias, result, size, eps, BLOCK: tl.constexpr):
        """The sum of two rows, normalised, scaled and shifted."""
        row = tl.program_id(0).to(tl.int64) * size
        column = tl.arange(0, BLOCK)
        inside = column < size
        total = tl.load(first + row + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(second + row + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) / size
        centred = tl.where(inside, total - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + row + column, (centred * scale * gain + shift).to(result.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["tokens"])
    def embed_norm(
        ids,
        kinds,
        sources,
        starts,
        lengths,
        word_table,
        position_table,
        kind_table,
        weight,
        bias,
        result,
        tokens,
        size,
        pad_token,
        eps,
        HAS_KINDS: tl.constexpr,
        SKIPS_PADDING: tl.constexpr,
        PACKED: tl.constexpr,
        LOOK: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """
        One token of one sample: the sum of its rows in the tables of words, positions and kinds, normalised. Where
        padding is skipped, positions count the sample's other tokens up to this one, from `pad_token` on.
        """
        sample = tl.program_id(0).to(tl.int64)
        place = tl.program_id(1).to(tl.int64)
        if PACKED:
            source = tl.load(sources + sample)
            row = tl.load(starts + sample) + place
            exists = place < tl.load(lengths + sample)
        else:
            source = sample * tokens
            row = source + place
            exists = place < tokens
        word = tl.load(ids + source + place, mask=exists, other=0)
        position = place
        if SKIPS_PADDING:
            seen = place * 0
            for start in range(0, LOOK, 64):
                other = start + tl.arange(0, 64)
                before = tl.load(ids + source + other, mask=(other <= place) & exists, other=pad_token)
                seen += tl.sum((before != pad_token).to(tl.int64), axis=0)
            position = tl.where(word == pad_token, place * 0, seen) + pad_token
        column = tl.arange(0, BLOCK)
        inside = (column < size) & exists
        total = tl.load(word_table + word * size + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(position_table + position * size + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_KINDS:
            kind = tl.load(kinds + source + place, mask=exists, other=0)
            total += tl.load(kind_table + kind * size + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) / size
        centred = tl.where(inside, total - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(
            result + row * size + column, (centred * scale * gain + shift).to(result.dtype.element_ty), mask=inside
        )


def can_run(hidden_states: Tensor, num_heads: int) -> bool:
    """Whether the kernels serve hidden states `(batch, tokens, hidden)` of this kind, in so many heads."""
    return serves(hidden_states, num_heads) and hidden_states.shape[1] <= MOST_TOKENS


def serves(like: Tensor, num_heads: int | None = None) -> bool:
    """Whether the kernels serve vectors of the size, kind and place of the rows of `like`, in so many heads."""
    size = like.shape[-1]
    return (
        triton is not None
        and like.is_cuda
        and like.dtype in DTYPES
        and size <= 8192
        and (num_heads is None or size // num_heads in (16, 32, 64, 128))
    )


def block_of(tokens: int) -> int:
    """The power of 2 that so many tokens are filled up to: a kernel each."""
    return max(16, power_of_two(tokens))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    bias: Tensor | None,
    real: Tensor | None,
    packed: Packed | None = None,
) -> Tensor:
    """
    # Parameters

    query, key, value : `Tensor`
        `(batch, tokens, hidden)`, the heads side by side; rows may lie apart, all three alike.
    num_heads : `int`
    bias : `Tensor`, optional
        `(1, heads, tokens, tokens)`, added to the scores of every sample.
    real : `Tensor`, optional
        `(batch, tokens)` bool, contiguous: which tokens are listened to; at least one a sample.
    packed : `Packed`, optional
        Where the samples are, if they lie packed in a batch of one.

    # Returns

    `Tensor`
        `(batch, tokens, hidden)`
    """
    batch, tokens, hidden = query.shape
    size = hidden // num_heads
    heard = torch.empty((batch, tokens, hidden), dtype=query.dtype, device=query.device)
    groups = [(0, batch, block_of(tokens))] if packed is None else packed.groups
    for first, last, block in groups:
        launch(
            attention,
            ((last - first) * num_heads,),
            query,
            key,
            value,
            query if bias is None else bias,
            query if real is None else real,
            query if packed is None else packed.starts,
            query if packed is None else packed.lengths,
            heard,
            first,
            tokens,
            size**-0.5,
            query.stride(1),
            hidden,
            0 if bias is None else bias.stride(1),
            0 if bias is None else bias.stride(2),
            HEADS=num_heads,
            SIZE=size,
            BLOCK=block,
            HAS_BIAS=bias is not None,
            HAS_PADDING=real is not None,
            PACKED=packed is not None,
            num_warps=WARPS[block],
        )
    return heard


def add_and_normalise(first: Tensor, second: Tensor, norm: Any) -> Tensor:
    """
    # Parameters

    first, second : `Tensor`
        `(batch, tokens, hidden)`, contiguous.
    norm : `torch.nn.LayerNorm`

    # Returns

    `Tensor`
        What `norm` says about their sum.
    """
    result = torch.empty_like(first)
    size = first.shape[-1]
    launch(
        add_norm,
        (first.numel() // size,),
        first,
        second,
        norm.weight,
        norm.bias,
        result,
        size,
        norm.eps,
        BLOCK=power_of_two(size),
    )
    return result


def embed_and_normalise(
    input_ids: Tensor,
    kinds: Tensor | None,
    words: Tensor,
    positions: Tensor,
    kind_table: Tensor | None,
    norm: Any,
    pad_token: int | None,
    packed: Packed | None = None,
    sources: Tensor | None = None,
) -> Tensor:
    """
    # Parameters

    input_ids : `Tensor`
        `(batch, tokens)` int64, contiguous; `(all tokens,)` of packed samples.
    kinds : `Tensor`, optional
        Token types, as `input_ids`.
    words, positions : `Tensor`
        `(words, hidden)` and `(positions, hidden)`, contiguous.
    kind_table : `Tensor`, optional
        `(token types, hidden)`, contiguous.
    norm : `torch.nn.LayerNorm`
    pad_token : `int`, optional
        Where positions count the tokens that are not this one, and begin after its number; `None`: they count all.
    packed : `Packed`, optional
        Where the samples are to lie, packed in a batch of one.
    sources : `Tensor`, optional
        `(samples,)` int64: with `packed`, where each sample begins in `input_ids`.

    # Returns

    `Tensor`
        `(batch, tokens, hidden)`
    """
    size = words.shape[1]
    if packed is None:
        batch, tokens = input_ids.shape
        grid, shape = (batch, tokens), (batch, tokens, size)
    else:
        tokens = packed.longest
        grid, shape = (len(packed), tokens), (1, int(packed.lengths_here.sum()), size)
    result = torch.empty(shape, dtype=words.dtype, device=words.device)
    launch(
        embed_norm,
        grid,
        input_ids,
        input_ids if kinds is None else kinds,
        input_ids if sources is None else sources,
        input_ids if packed is None else packed.starts,
        input_ids if packed is None else packed.lengths,
        words,
        positions,
        words if kind_table is None else kind_table,
        norm.weight,
        norm.bias,
        result,
        tokens,
        size,
        0 if pad_token is None else pad_token,
        norm.eps,
        HAS_KINDS=kind_table is not None and kinds is not None,
        SKIPS_PADDING=pad_token is not None,
        PACKED=packed is not None,
        LOOK=64 if pad_token is None else max(64, power_of_two(tokens)),
        BLOCK=power_of_two(size),
    )
    return result
