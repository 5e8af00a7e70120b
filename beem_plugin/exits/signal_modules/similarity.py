"""Similarity of the hidden states before and after a block."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule

SCOPES = ("tokens", "first")


@SignalModule.register("similarity")
class Similarity(SignalModule):
    """
    cos(h_i, h_{i-1}), the input and the output of the block that the exit reads (MuE, Tang et al. 2023; CALM's state
    variant). At exit 1 the input of the first block are the embeddings. The cosine of a sample is computed over its
    real tokens only: it depends neither on other samples nor on padding.

    Registered as a `SignalModule` with name "similarity".

    # Parameters

    over : `str`, optional (default = `"tokens"`)
        `"tokens"`: one cosine over the hidden states of all tokens, end to end; `"first"`: the first token's.
    """

    name: ClassVar[str] = "similarity"
    needs_previous_hidden_states: ClassVar[bool] = True

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, over: str = "tokens") -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        if over not in SCOPES:
            raise ConfigurationError(not_allowed("signals.similarity.over", over, SCOPES))
        self.over = over

    def forward(self, view: ExitView) -> Tensor:
        after, before = view.hidden_states.float(), view.memory["previous_hidden_states"].float()
        if self.over == "first":
            return functional.cosine_similarity(after[:, 0], before[:, 0], dim=-1)
        real = view.attention_mask.unsqueeze(-1)
        after, before = after * real, before * real
        return functional.cosine_similarity(after.flatten(1), before.flatten(1), dim=-1)
