"""Captions decoded word by word, each word leaving at its own depth."""

from beem_plugin.execution.captions.decoding import CaptionDecoding, Decoded
from beem_plugin.execution.captions.generated import GeneratedCaption
from beem_plugin.execution.captions.image_exit import ImageExit
from beem_plugin.execution.captions.skipped_blocks import SkippedBlocks
from beem_plugin.execution.captions.speed import decoded_speed

__all__ = ["CaptionDecoding", "Decoded", "GeneratedCaption", "ImageExit", "SkippedBlocks", "decoded_speed"]
