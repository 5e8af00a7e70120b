"""Engines' inputs from lists of token ids."""

from collections.abc import Sequence

from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.data.token_arrays import TokenArrays


def ragged_of(input_ids: Sequence[Sequence[int]], pad_token_id: int = 0, position: int = 0) -> RaggedBatch:
    arrays = TokenArrays.of_columns({"input_ids": input_ids}, len(input_ids))
    return RaggedBatch.from_arrays(arrays, pad_token_id, position)
