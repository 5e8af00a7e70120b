"""Heads of exits over a vocabulary."""

from beem_plugin.exits.vocabulary_heads.head import (
    LinearShortcutHead as LinearShortcutHead,
    LowRankHead as LowRankHead,
    PastFutureHead as PastFutureHead,
    TiedHead as TiedHead,
    UntiedHead as UntiedHead,
    VocabularyHead as VocabularyHead,
)
