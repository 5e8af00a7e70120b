"""Engines' inputs from lists of token ids."""

from collections.abc import Sequence

from beem_plugin.data.ragged_batch import RaggedBatch


def ragged_of(input_ids: Sequence[Sequence[int]], pad_token_id: int = 0, position: int = 0) -> RaggedBatch:
    return RaggedBatch.from_columns({"input_ids": input_ids}, pad_token_id, position)
