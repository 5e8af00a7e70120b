"""Heads of exits over a vocabulary."""

from beem_plugin.exits.vocabulary_heads.head import VocabularyHead
from beem_plugin.exits.vocabulary_heads.linear_shortcut import LinearShortcutHead
from beem_plugin.exits.vocabulary_heads.low_rank import LowRankHead
from beem_plugin.exits.vocabulary_heads.past_future import PastFutureHead
from beem_plugin.exits.vocabulary_heads.tied import TiedHead
from beem_plugin.exits.vocabulary_heads.untied import UntiedHead

__all__ = ["LinearShortcutHead", "LowRankHead", "PastFutureHead", "TiedHead", "UntiedHead", "VocabularyHead"]
