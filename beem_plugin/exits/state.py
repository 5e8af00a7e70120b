"""What an exit policy stores of each sample between exits."""

from torch import Tensor


class ExitState:
    """Tensors by name, each `(batch, ...)`, so that the samples of a batch that have exited can be removed."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def replace(self, **tensors: Tensor) -> "ExitState":
        """A new state in which these tensors replace those of the same names."""
        return ExitState(**{**self.tensors, **tensors})

    def index_select(self, index: Tensor) -> "ExitState":
        """The state of the samples at `index`, a `(kept,)` int64 tensor."""
        return ExitState(**{name: tensor.index_select(0, index) for name, tensor in self.tensors.items()})
