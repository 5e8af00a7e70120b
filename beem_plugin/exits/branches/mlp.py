"""The feed-forward half of a narrow transformer block."""

from torch import Tensor

from beem_plugin.exits.branches.branch import Branch, FeedForward, check_dropout


@Branch.register("mlp")
class MlpBranch(Branch):
    """
    x + W_out LN(h + W_2 GELU(W_1 h)) with h = W_in x, token by token: the transformer branch without its attention.

    Registered as a `Branch` with name "mlp".

    # Parameters

    width : `int`, optional (default = `384`)
        Size of h; W_1 maps to twice as much.
    dropout : `float`, optional (default = `0.1`)
        After W_2.
    """

    def __init__(self, hidden_size: int, width: int = 384, dropout: float = 0.1) -> None:
        super().__init__(hidden_size, width)
        check_dropout(dropout)
        self.feed_forward = FeedForward(width, dropout)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.feed_forward(vectors)
