"""A policy over words in the numbers that kernels take: a rule, and how its threshold falls along a caption."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from beem_plugin.execution.fused_rule import FusedRule, fused_rule
from beem_plugin.exits.policies import DecayingThreshold
from beem_plugin.exits.policies.decaying_threshold import SHARE
from beem_plugin.exits.policy import ExitPolicy


@dataclass
class WordRule:
    """
    # Parameters

    rule : `FusedRule`
    decaying : `DecayingThreshold`, optional (default = `None`)
        Whose threshold depends on the position of the word.
    """

    rule: FusedRule
    decaying: DecayingThreshold | None = None

    def moves(self, room: int, device: torch.device) -> Tensor | None:
        """`(room, 2)` float64: what the score of the word at each position is multiplied by, and what is added then."""
        if self.decaying is None:
            return None
        added = self.decaying.moves(torch.arange(room, dtype=torch.float64))
        return torch.stack([torch.full_like(added, 1 / SHARE), added], dim=1).to(device)


def word_rule(policy: ExitPolicy) -> WordRule | None:
    """`None` for a policy that the kernels do not know. It is bound and calibrated."""
    if type(policy) is not DecayingThreshold:
        rule = fused_rule(policy)
        return None if rule is None else WordRule(rule)
    policy.policy.values = policy.values  # those of the policy inside are kept here
    rule = fused_rule(policy.policy)
    return None if rule is None or not rule.has_score else WordRule(rule, policy)
