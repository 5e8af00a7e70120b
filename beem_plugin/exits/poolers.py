"""Poolers that allennlp-light lacks: BERT's, a learned mix of max and mean, and all tokens."""

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from allennlp_light.nn.util import masked_mean
from torch import Tensor

from beem_plugin.common.errors import check_choice


@Seq2VecEncoder.register("bert_pooler", exist_ok=True)
class BertPooler(Seq2VecEncoder):
    """
    One vector per sequence, then a linear map and tanh, as BERT's own pooler. It replaces allennlp-light's class of the
    same name, which imports a module that does not exist.

    Registered as a `Seq2VecEncoder` with name "bert_pooler".

    # Parameters

    embedding_dim : `int`
        The backbone's hidden size; filled in by the multi-exit encoder.
    pooling : `str`, optional (default = `"cls"`)
        `"cls"`, the first token's vector, as BERT; `"mean"`, the mean over the tokens that are not padding.
    pretrained : `bool`, optional (default = `True`)
        Start from the backbone's own pooler where it has one.
    """

    def __init__(self, embedding_dim: int, pooling: str = "cls", pretrained: bool = True) -> None:
        super().__init__()
        check_choice("pooler.pooling", pooling, ("cls", "mean"))
        self.pooling = pooling
        self.pretrained = pretrained
        self.dense = torch.nn.Linear(embedding_dim, embedding_dim)

    @property
    def reads(self) -> str:
        """See `ExitHead.reads`."""
        return "first" if self.pooling == "cls" else "mean"

    def get_input_dim(self) -> int:
        return self.dense.in_features

    def get_output_dim(self) -> int:
        return self.dense.out_features

    def initialize(self, weight: Tensor, bias: Tensor) -> None:
        """Copies a pretrained pooler's parameters in."""
        with torch.no_grad():
            self.dense.weight.copy_(weight)
            self.dense.bias.copy_(bias)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        # tokens: (batch, tokens, embedding_dim), mask: (batch, tokens) bool
        if self.pooling == "cls" or tokens.shape[1] == 1:  # the mean of one token is that token
            vector = tokens[:, 0]
        elif mask is None:
            vector = tokens.mean(1)
        else:
            vector = masked_mean(tokens, mask.bool().unsqueeze(-1), 1)  # type: ignore[arg-type]
        return torch.tanh(self.dense(as_input_of(self.dense, vector)))


def as_input_of(module: torch.nn.Module, values: Tensor) -> Tensor:
    """`values` in the precision of the module's weight; in float32 for a quantised module, whose weight is a method."""
    weight = module.weight
    return values.to(weight.dtype) if isinstance(weight, Tensor) else values.float()


@Seq2VecEncoder.register("mixed_pooler", exist_ok=True)
class MixedPooler(Seq2VecEncoder):
    """
    Shallow-Deep networks' pooling (Kaya et al. 2019) over a sequence: alpha max + (1 - alpha) mean over the tokens that
    are not padding, feature by feature. alpha is the sigmoid of one learned number, 0.5 at the start. (In the release
    it is an unbounded parameter, and the names of the two parts are swapped.)

    Registered as a `Seq2VecEncoder` with name "mixed_pooler".

    # Parameters

    embedding_dim : `int`
        See `BertPooler`.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.mix = torch.nn.Parameter(torch.zeros(()))

    def get_input_dim(self) -> int:
        return self.embedding_dim

    get_output_dim = get_input_dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        # tokens: (batch, tokens, embedding_dim), mask: (batch, tokens) bool; every sample has a real token
        if mask is None:
            mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        real = mask.bool().unsqueeze(-1)
        largest = tokens.masked_fill(~real, -torch.inf).amax(1)
        mean = tokens.masked_fill(~real, 0).float().sum(1) / real.sum(1)
        alpha = torch.sigmoid(self.mix.float())
        return (alpha * largest + (1 - alpha) * mean).to(tokens.dtype)


class EveryToken(Seq2VecEncoder):
    """Returns all token vectors: classifiers then give logits of every token."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.dim = embedding_dim

    def get_input_dim(self) -> int:
        return self.dim

    get_output_dim = get_input_dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return tokens
