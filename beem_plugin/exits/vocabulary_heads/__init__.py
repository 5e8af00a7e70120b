"""Heads of exits over a vocabulary."""

from beem_plugin.exits.vocabulary_heads.head import VocabularyHead as VocabularyHead
from beem_plugin.exits.vocabulary_heads.past_future import PastFutureHead as PastFutureHead
from beem_plugin.exits.vocabulary_heads.tied import (
    LinearShortcutHead as LinearShortcutHead,
    LowRankHead as LowRankHead,
    TiedHead as TiedHead,
    UntiedHead as UntiedHead,
)
