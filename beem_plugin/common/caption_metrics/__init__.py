"""BLEU, METEOR, ROUGE-L, CIDEr and SPICE of captions, by pycocoevalcap's scorers."""

from beem_plugin.common.caption_metrics.scores import (
    DEFAULT_METRICS,
    METRICS,
    CaptionScores,
    check_metrics,
    score_captions,
)

__all__ = ["DEFAULT_METRICS", "METRICS", "CaptionScores", "check_metrics", "score_captions"]
