from beem_plugin.data.batch_samplers import BatchSampler
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.collate import collate
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.instance import Instance
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.data.vocabulary import Vocabulary

__all__ = [
    "BatchSampler",
    "CaptionTokenizer",
    "DataLoader",
    "DatasetReader",
    "ImageProcessor",
    "Instance",
    "TextEncoder",
    "Vocabulary",
    "collate",
]
