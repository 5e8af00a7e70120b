"""A layer normalisation before a vocabulary matrix: the decoder's own, or one of the exit's."""

import torch
from torch import Tensor

from beem_plugin.common.errors import check_number
from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead, copied_norm, identity


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
