"""A head that reads the hidden states through a branch."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy
from beem_plugin.exits.branches.branch import Branch
from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead
from beem_plugin.exits.outputs import HeadOutput


class BranchedHead(ExitHead):
    """Any head, which gets the branch's output in place of the backbone's."""

    def __init__(self, branch: Branch, head: ExitHead) -> None:
        super().__init__()
        self.branch = branch
        self.head = head
        self.pooled_size = head.pooled_size
        self.remembers = head.remembers  # type: ignore[misc]

    @property
    def reads(self) -> str | None:
        # The mean of the branch's outputs is not its output for the mean.
        return "first" if self.head.reads == "first" and not self.branch.mixes_tokens else None

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        return self.head(self.branch(hidden_states, attention_mask), attention_mask, memory)

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.head.memory_after(output, memory)


def with_branches(
    heads: Sequence[ExitHead], branch: Lazy[Branch] | Sequence[Lazy[Branch] | None] | None, hidden_size: int
) -> list[ExitHead]:
    """
    Heads, one an exit, that read the hidden states through branches. One block: every exit but the last has such a
    branch. A list: one block an exit, `None` for no branch.
    """
    if branch is None:
        return list(heads)
    blocks = list(branch) if isinstance(branch, Sequence) else [branch] * (len(heads) - 1) + [None]
    if len(blocks) != len(heads):
        raise ConfigurationError(f"branch: found a list of {len(blocks)}, allowed: {len(heads)} entries, one an exit")
    return [
        head if block is None else BranchedHead(block.construct(hidden_size=hidden_size), head)
        for block, head in zip(blocks, heads, strict=True)
    ]
