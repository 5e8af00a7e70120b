"""Heads of exits over a vocabulary."""

from beem_plugin.exits.vocabulary_heads.head import VocabularyHead
from beem_plugin.exits.vocabulary_heads.past_future import PastFutureHead
from beem_plugin.exits.vocabulary_heads.tied import LinearShortcutHead, LowRankHead, TiedHead, UntiedHead

__all__ = ["LinearShortcutHead", "LowRankHead", "PastFutureHead", "TiedHead", "UntiedHead", "VocabularyHead"]
