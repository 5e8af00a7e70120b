"""Heads over a vocabulary: the base class, a layer normalisation before a matrix, and DeeCap's past and future."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import check_number
from beem_plugin.common.registry import Registrable
from beem_plugin.exits.branches.branch import Branch

Memory = Mapping[str, Tensor]  # tensors `(tokens, ...)` that earlier exits store for later ones


class VocabularyHead(torch.nn.Module, Registrable):
    """
    An exit over a vocabulary in two parts: `features` of a hidden state, and a matrix `weight` with a row for each
    entry of the vocabulary. The logits are their product. The parts are separate, so that a loss can process tokens in
    chunks, and an exit can compute the logits of a few candidates only.

    The last exit has no such head: it is the decoder's own output.

    # Parameters

    norm, output_weight, exit_number, num_exits
        Filled in, if the constructor has them: the decoder's final layer normalisation, and its `(vocabulary, hidden)`
        matrix, from which a head is initialised.
    """

    default_implementation = "tied"

    remembers: ClassVar[bool] = False
    """Whether it reads what `memory_after` of earlier exits returned, whether or not these were evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.branch: Branch | None = None
        """Further layers of the exit's own, whose output the methods get as `hidden`; set by the decoder."""

    def join(self, heads: "Sequence[VocabularyHead]") -> None:
        """Called once with the heads of all exits but the last, in order, so that they can share parameters."""

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        """`(tokens, hidden)` to `(tokens, size)`."""
        raise TypeError(f"{type(self).__name__} does not define features")

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        """The tensors that this exit stores for later exits."""
        return {}

    def state(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, size)`, the state that earlier exits imitate; `None` if it is `features`."""
        return None

    def imitated(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, later exits, size)`, the exit's estimates of later exits' states; `None` if it has none."""
        return None

    def weight(self, output_weight: Tensor) -> Tensor:
        """`(vocabulary, size)`; by default `output_weight`, the decoder's own matrix, which the head does not own."""
        return output_weight

    def features_macs(self) -> int:
        """Multiply-accumulates of `features` for a token."""
        return 0


def copied_norm(norm: torch.nn.LayerNorm) -> torch.nn.LayerNorm:
    """A layer normalisation initialized from `norm`."""
    copy = torch.nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
    copy.load_state_dict(norm.state_dict())
    return copy


def identity(size: int) -> torch.nn.Linear:
    """A linear layer initialized to the identity."""
    linear = torch.nn.Linear(size, size)
    torch.nn.init.eye_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    return linear


@VocabularyHead.register("tied")
class TiedHead(VocabularyHead):
    """
    A separate layer normalisation per exit, initialized from the decoder's final one, before the decoder's own
    vocabulary matrix: 2 x hidden parameters per exit. CALM, MuE and LayerSkip share the normalisation too
    (`share_norm`).

    Registered as a `VocabularyHead` with name "tied", which is the default.

    # Parameters

    share_norm : `bool`, optional (default = `False`)
        Use the decoder's final normalisation itself.
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, share_norm: bool = False) -> None:
        super().__init__()
        self.norm = norm if share_norm else copied_norm(norm)

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.norm(hidden)


@VocabularyHead.register("untied")
class UntiedHead(TiedHead):
    """
    A separate layer normalisation and vocabulary matrix per exit, initialized from the decoder's: vocabulary x hidden
    parameters per exit (CapEEN: 464 M for the 12 exits of GPT-2).

    Registered as a `VocabularyHead` with name "untied".
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor) -> None:
        super().__init__(norm, output_weight)
        self.words = torch.nn.Parameter(output_weight.detach().clone())  # the name in archives

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.words


@VocabularyHead.register("low_rank")
class LowRankHead(TiedHead):
    """
    A vocabulary matrix of rank r, as a product of two: r (vocabulary + hidden) multiply-accumulates per token
    instead of vocabulary x hidden, so that an exit costs less than the blocks it saves. They are initialized to the
    best approximation of the decoder's matrix, by singular value decomposition.

    Registered as a `VocabularyHead` with name "low_rank".

    # Parameters

    rank : `int`, optional (default = `64`)
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, rank: int = 64) -> None:
        super().__init__(norm, output_weight)
        vocabulary, hidden = output_weight.shape
        check_number("head.rank", rank, 1, min(vocabulary, hidden))
        self.rank = rank
        self.down = torch.nn.Linear(hidden, rank, bias=False)
        with torch.no_grad():
            # The right singular vectors are those of the small matrix W^T W; the left ones follow.
            _, vectors = torch.linalg.eigh((output_weight.T @ output_weight).double())
            basis = vectors[:, -rank:].to(output_weight.dtype)  # (hidden, rank)
            self.down.weight.copy_(basis.T)
            self.words = torch.nn.Parameter(output_weight @ basis)  # the name in archives

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.down(self.norm(hidden))

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.words

    def features_macs(self) -> int:
        return self.down.in_features * self.rank


@VocabularyHead.register("linear_shortcut")
class LinearShortcutHead(TiedHead):
    """
    A linear map of the hidden state, in place of the blocks that are skipped (Din et al. 2023, "Jump to conclusions"),
    then as `"tied"`. It is initialized to the identity, so that the head is initially a tied one.

    Registered as a `VocabularyHead` with name "linear_shortcut".
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor) -> None:
        super().__init__(norm, output_weight)
        self.shortcut = identity(output_weight.shape[1])

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.norm(self.shortcut(hidden))

    def features_macs(self) -> int:
        return self.shortcut.in_features * self.shortcut.out_features


@VocabularyHead.register("past_future")
class PastFutureHead(VocabularyHead):
    """
    DeeCap (Fei et al. 2022): an exit that reads the states of earlier exits, and imitates those of later ones. With s_i
    the state of a token at exit i of L, the input of the vocabulary matrix that all exits share is

        lambda_i mean(s_1 ... s_i) + (1 - lambda_i) mean(imitations of s_{i+1} ... s_L),

    lambda_i the sigmoid of a linear map of both means. The imitation of s_j is W_j s_i + b_j, with one W_j for each j,
    whichever exit imitates it. States of earlier exits get no gradient from later ones.

    s_i is the output of the exit's block after a separate layer normalisation, initialized from the decoder's final
    one; s_L is the input of the decoder's own matrix. (The paper has poolers with tanh, and sums, whose scale no
    trained matrix expects; the release imitates the next exit only.) Initially W_j is the identity and lambda_i is 1/2.
    The objective `imitation` trains the imitations.

    Registered as a `VocabularyHead` with name "past_future".
    """

    remembers: ClassVar[bool] = True

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, exit_number: int, num_exits: int) -> None:
        super().__init__()
        size = output_weight.shape[1]
        self.exit_number = exit_number
        self.norm = copied_norm(norm)
        self.gate = torch.nn.Linear(2 * size, 1)
        torch.nn.init.zeros_(self.gate.weight)
        torch.nn.init.zeros_(self.gate.bias)
        # The first one (for the state of the next exit) belongs to this head; `join` replaces the others.
        self.imitators = torch.nn.ModuleList(identity(size) for _ in range(exit_number, num_exits))

    def join(self, heads: Sequence[VocabularyHead]) -> None:
        later = [head for head in heads[self.exit_number :] if isinstance(head, PastFutureHead)]
        self.imitators = torch.nn.ModuleList([self.imitators[0], *(head.imitators[0] for head in later)])

    def state(self, hidden: Tensor) -> Tensor:
        """`(tokens, hidden)` s_i"""
        return self.norm(hidden)

    def imitated(self, hidden: Tensor) -> Tensor:
        """`(tokens, later exits, hidden)` the imitations of the states of later exits."""
        state = self.state(hidden)
        return torch.stack([imitator(state) for imitator in self.imitators], 1)

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        past = (self.state(hidden) + self._before(hidden, memory or {})) / self.exit_number
        future = self.imitated(hidden).mean(1)
        share = torch.sigmoid(self.gate(torch.cat([past, future], -1)))  # (tokens, 1)
        return share * past + (1 - share) * future

    def _before(self, hidden: Tensor, memory: Memory) -> Tensor:
        """`(tokens, hidden)` the sum of the states of earlier exits."""
        return memory["past"] if self.exit_number > 1 else torch.zeros_like(hidden)

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        return {"past": (self.state(hidden) + self._before(hidden, memory)).detach()}

    def features_macs(self) -> int:
        size = self.gate.in_features // 2
        return len(self.imitators) * size * size + self.gate.in_features
