"""Heads of exits over a vocabulary."""

from beem_plugin.exits.vocabulary_heads.head import (
    LinearShortcutHead as LinearShortcutHead,
    LowRankHead as LowRankHead,
    TiedHead as TiedHead,
    UntiedHead as UntiedHead,
    VocabularyHead as VocabularyHead,
)
from beem_plugin.exits.vocabulary_heads.past_future import PastFutureHead as PastFutureHead
