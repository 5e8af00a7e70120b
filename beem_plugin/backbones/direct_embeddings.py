"""
Embeddings computed by one GPU kernel, where their modules launch a dozen: for a single short sentence those take as
long as half a block. What is computed is said by the modules, and compared with them where it is used for the first
time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import block_kernels
from beem_plugin.backbones.direct_block import TOLERANCE
from beem_plugin.backbones.packed import Packed
from beem_plugin.backbones.untouched import Untouched, consists_of

logger = logging.getLogger(__name__)


@dataclass
class DirectEmbeddings:
    """
    The sum of a token's rows in the tables of words, positions and token types, normalised; for inference.

    # Parameters

    words, positions : `torch.nn.Embedding`
    kinds : `torch.nn.Embedding`, optional
        Of token types.
    norm : `torch.nn.LayerNorm`
    pad_token : `int`, optional
        Where positions count the tokens that are not this one, and begin after its number; `None`: they count all.
    whole : `torch.nn.Module`
        The embeddings, called with `input_ids` and, where they have such, `token_type_ids`.
    """

    words: Any
    positions: Any
    kinds: Any
    norm: Any
    pad_token: int | None
    whole: torch.nn.Module
    agreed: set[Any] = field(default_factory=set)
    is_usable: bool = True

    def __post_init__(self) -> None:
        self.untouched = Untouched(self.whole)

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """`(batch, tokens, embedding)`, or `None` where the modules must say it."""
        input_ids = batch["input_ids"]
        if not (self.is_usable and self.can_run(input_ids) and self.untouched):
            return None
        kinds = batch.get("token_type_ids")
        kind = (input_ids.device, self.words.weight.dtype, kinds is None, input_ids.shape[1] > 64)
        if kind in self.agreed:
            return self.compute(input_ids, kinds)
        try:
            found = self.compute(input_ids, kinds)
            expected = self.whole(input_ids, **({} if self.kinds is None else {"token_type_ids": kinds}))
            apart = float((found.float() - expected.float()).abs().max())
            if apart <= TOLERANCE[found.dtype] * (1 + float(expected.abs().max())):
                self.agreed.add(kind)
                return found
            logger.warning("embeddings computed by a kernel are %.2g off what their modules say", apart)
        except Exception as error:  # Triton and its compiler fail in many ways
            first_line = (str(error).strip().splitlines() or [""])[0]
            logger.warning("the kernel for embeddings is not used: %s: %s", type(error).__name__, first_line)
        self.is_usable = False
        return None

    def pack(self, tokens: Mapping[str, Tensor], sources: Tensor, packed: Packed) -> Tensor:
        """
        # Parameters

        tokens : `Mapping[str, Tensor]`
            `input_ids` and, where they have such, `token_type_ids`, each `(all tokens,)` int64.
        sources : `Tensor`
            `(samples,)` int64 on their device: where each sample begins among them.
        packed : `Packed`

        # Returns

        `Tensor`
            `(1, tokens of the samples, embedding)`
        """
        return self.compute(tokens["input_ids"], tokens.get("token_type_ids"), packed, sources)

    def can_run(self, input_ids: Tensor) -> bool:
        """Whether the kernel serves such tokens."""
        return block_kernels.serves(self.words.weight) and input_ids.dtype == torch.int64 and input_ids.numel() > 0

    def compute(
        self,
        input_ids: Tensor,
        kinds: Tensor | None,
        packed: Packed | None = None,
        sources: Tensor | None = None,
    ) -> Tensor:
        """With the kernel; see `block_kernels.embed_and_normalise`."""
        if kinds is None and self.kinds is not None:
            kinds = torch.zeros_like(input_ids)
        return block_kernels.embed_and_normalise(
            input_ids.contiguous(),
            None if kinds is None or self.kinds is None else kinds.contiguous(),
            self.words.weight,
            self.positions.weight,
            None if self.kinds is None else self.kinds.weight,
            self.norm,
            self.pad_token,
            packed,
            sources,
        )


def direct_embeddings(whole: Any, pad_token: int | None = None) -> DirectEmbeddings | None:
    """
    # Parameters

    whole : `torch.nn.Module`
        Embeddings with transformers' names.
    pad_token : `int`, optional (default = `None`)

    # Returns

    `DirectEmbeddings`, optional
        `None` if a module is not of the kind expected.
    """
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm", "dropout")
    words, positions, kinds, norm, dropout = (getattr(whole, name, None) for name in names)
    tables = [table for table in (words, positions, kinds) if table is not None]
    if (
        words is None
        or positions is None
        or any(type(table) is not torch.nn.Embedding or table.max_norm is not None for table in tables)
        or type(norm) is not torch.nn.LayerNorm
        or type(dropout) is not torch.nn.Dropout
        or norm.weight is None
        or norm.bias is None
        or not consists_of(whole, [*tables, norm, dropout])
    ):
        return None
    return DirectEmbeddings(words, positions, kinds, norm, pad_token, whole)
