from beem_plugin.dataset_readers.caption_text import CaptionTextReader
from beem_plugin.dataset_readers.glue import GlueReader
from beem_plugin.dataset_readers.karpathy_captions import KarpathyCaptionsReader
from beem_plugin.dataset_readers.shapes_captions import ShapesCaptionsReader
from beem_plugin.dataset_readers.text_classification import TextClassificationReader

__all__ = [
    "CaptionTextReader",
    "GlueReader",
    "KarpathyCaptionsReader",
    "ShapesCaptionsReader",
    "TextClassificationReader",
]
