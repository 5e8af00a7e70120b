"""Pretrained encoders and decoders that run block by block."""

from beem_plugin.backbones.backbone import Backbone, BackboneState
from beem_plugin.backbones.families import PretrainedBackbone
from beem_plugin.backbones.transformer import TransformerBackbone

__all__ = ["Backbone", "BackboneState", "PretrainedBackbone", "TransformerBackbone"]
