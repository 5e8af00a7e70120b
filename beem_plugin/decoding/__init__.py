"""Captions decoded token by token, each token exiting at its own depth."""

from beem_plugin.decoding.decoding import CaptionDecoding, Decoded
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.image_exit import ImageExit
from beem_plugin.decoding.skipped_blocks import SkippedBlocks
from beem_plugin.decoding.speed import decoded_speed

__all__ = ["CaptionDecoding", "Decoded", "GeneratedCaption", "ImageExit", "SkippedBlocks", "decoded_speed"]
