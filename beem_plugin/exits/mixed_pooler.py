"""A learned mix of max and mean pooling."""

from __future__ import annotations

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor


@Seq2VecEncoder.register("mixed_pooler", exist_ok=True)
class MixedPooler(Seq2VecEncoder):
    """
    Shallow-Deep networks' pooling (Kaya et al. 2019) over a sequence: alpha max + (1 - alpha) mean over the tokens that
    are not padding, feature by feature. alpha is the sigmoid of one learned number, 0.5 at the start. (In the release
    it is an unbounded parameter, and the names of the two parts are swapped.)

    Registered as a `Seq2VecEncoder` with name "mixed_pooler".

    # Parameters

    embedding_dim : `int`
        The backbone's hidden size; filled in by the multi-exit encoder.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.mix = torch.nn.Parameter(torch.zeros(()))

    def get_input_dim(self) -> int:
        return self.embedding_dim

    def get_output_dim(self) -> int:
        return self.embedding_dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        # tokens: (batch, tokens, embedding_dim), mask: (batch, tokens) bool; every sample has a real token
        if mask is None:
            mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        real = mask.bool().unsqueeze(-1)
        largest = tokens.masked_fill(~real, -torch.inf).amax(1)
        mean = tokens.masked_fill(~real, 0).float().sum(1) / real.sum(1)
        alpha = torch.sigmoid(self.mix.float())
        return (alpha * largest + (1 - alpha) * mean).to(tokens.dtype)
