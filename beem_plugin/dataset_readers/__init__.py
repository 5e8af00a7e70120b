from beem_plugin.dataset_readers.glue import GlueReader
from beem_plugin.dataset_readers.text_classification import TextClassificationReader

__all__ = ["GlueReader", "TextClassificationReader"]
