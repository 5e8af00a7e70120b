"""Pretrained encoders that are run one block at a time."""

from beem_plugin.backbones.backbone import Backbone, BackboneState
from beem_plugin.backbones.transformer import TransformerBackbone

__all__ = ["Backbone", "BackboneState", "TransformerBackbone"]
