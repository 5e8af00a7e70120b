"""An image encoder and a language model with cross-attention to its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

from beem_plugin.backbones import loading
from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.backbones.image_blocks import named_image_size
from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.files import atomic_write
from beem_plugin.common.registry import Registrable
from beem_plugin.data.hub import resolve_model_name

ENCODERS = ("beit", "deit", "dinov2", "swin", "vit")
DECODERS = ("gpt2",)
KEY = "model.decoder.backbone"


class CaptionBackbone(torch.nn.Module, Registrable):
    """An image encoder, and a decoder as a sequence of blocks numbered from 1."""

    default_implementation = "vision_encoder_decoder"

    decoder: Gpt2Decoder
    config: Any

    @property
    def image_encoder(self) -> torch.nn.Module:
        """The image encoder, without the map to the decoder's size."""
        raise NotImplementedError(f"{type(self).__name__} does not define image_encoder")

    def encode_images(self, pixel_values: Tensor) -> Tensor:
        """`(images, channels, height, width)` to `(images, patches, hidden)` in the decoder's size."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode_images")

    def save_config(self, folder: str | Path) -> None:
        """Writes `config.json`, from which the model is rebuilt with `model_name: folder, load_weights: false`."""
        with atomic_write(Path(folder) / "config.json") as file:
            file.write(self.config.to_json_string())


@CaptionBackbone.register("vision_encoder_decoder", constructor="from_parts")
class VisionEncoderDecoderBackbone(CaptionBackbone):
    """
    A transformers `VisionEncoderDecoderModel`: Swin, ViT, DeiT, BEiT or DINOv2 as encoder, GPT-2 with cross-attention
    as decoder, and a linear map between them if their sizes differ. An image is encoded once; the decoder runs block by
    block (`Gpt2Decoder`) and gives the hidden states of the full forward pass.

    The map between the sizes, and cross-attention that the checkpoint lacks, are initialised at random.

    Registered as a `CaptionBackbone` with name "vision_encoder_decoder", which is the default.

    # Parameters

    model_name : `str`, optional (default = `None`)
        A `VisionEncoderDecoder` checkpoint: a model of the hub or a folder. Else both `encoder` and `decoder`.
    encoder : `str` or `dict`, optional (default = `None`)
        A model of the hub or a folder; or `{"model_type": "vit", ...}`, random weights in this shape.
    decoder : `str` or `dict`, optional (default = `None`)
        The same for GPT-2. The default of `vocab_size` in a configuration is the tokenizer's.
    load_weights : `bool`, optional (default = `True`)
        `False` builds the model from its configuration alone, for a state dict that is loaded afterwards.
    encoder_overrides, decoder_overrides : `dict`, optional (default = `None`)
        Entries of the configurations to replace, such as `{"resid_pdrop": 0.0}`.
    num_layers : `int`, optional (default = all)
        The number of blocks of the decoder to keep, from the first.
    vocab_size : `int`, optional (default = `None`)
        The tokenizer's; filled in.
    """

    def __init__(self, transformer_model: VisionEncoderDecoderModel, model_name: str | None = None) -> None:
        super().__init__()
        encoder: Any = transformer_model.encoder
        # Parameters without a gradient would stall distributed training.
        if isinstance(getattr(encoder, "pooler", None), torch.nn.Module):
            encoder.pooler = None
        for name, parameter in encoder.named_parameters():
            if "mask_token" in name:
                parameter.requires_grad_(False)
        self.transformer_model = transformer_model
        self.config = transformer_model.config
        self.model_name = model_name
        self.decoder = Gpt2Decoder(transformer_model.decoder)

    @property
    def num_layers(self) -> int:
        return self.decoder.num_layers

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def image_encoder(self) -> torch.nn.Module:
        encoder: Any = self.transformer_model.encoder
        return encoder

    def encode_images(self, pixel_values: Tensor) -> Tensor:
        with named_image_size(self, pixel_values):
            states = self.transformer_model.encoder(pixel_values=pixel_values).last_hidden_state
        projection = getattr(self.transformer_model, "enc_to_dec_proj", None)
        return states if projection is None else projection(states)

    @classmethod
    def from_parts(
        cls,
        model_name: str | None = None,
        encoder: str | dict | None = None,
        decoder: str | dict | None = None,
        load_weights: bool = True,
        encoder_overrides: dict | None = None,
        decoder_overrides: dict | None = None,
        num_layers: int | None = None,
        vocab_size: int | None = None,
    ) -> VisionEncoderDecoderBackbone:
        """See the class for the parameters."""
        if (model_name is None) == (encoder is None and decoder is None) or (encoder is None) != (decoder is None):
            raise ConfigurationError(f"{KEY}: allowed: 'model_name', or both 'encoder' and 'decoder'")
        if model_name is not None:
            path = resolve_model_name(model_name, f"{KEY}.model_name")
            entries = loading.read_config(path, f"{KEY}.model_name")
            check_choice(f"{KEY}.model_name: 'model_type'", entries.get("model_type"), ("vision-encoder-decoder",))
            parts = {"encoder": entries.get("encoder", {}), "decoder": entries.get("decoder", {})}
        else:
            path = None
            parts = {"encoder": as_entries(encoder, "encoder"), "decoder": as_entries(decoder, "decoder")}
        for part, allowed in (("encoder", ENCODERS), ("decoder", DECODERS)):
            check_choice(f"{KEY}.{part}: 'model_type'", parts[part].get("model_type"), allowed)
        if isinstance(decoder, dict) and vocab_size is not None:
            parts["decoder"].setdefault("vocab_size", vocab_size)
            # The tokenizer's are used; the defaults of GPT-2 lie outside a small vocabulary.
            for name in ("bos_token_id", "eos_token_id"):
                parts["decoder"].setdefault(name, None)
        configs = {
            "encoder": part_config(parts["encoder"], encoder_overrides, isinstance(encoder, dict), "encoder"),
            "decoder": part_config(parts["decoder"], decoder_overrides, isinstance(decoder, dict), "decoder"),
        }
        found = configs["decoder"].vocab_size
        if vocab_size is not None and found < vocab_size:
            raise ConfigurationError(
                f"{KEY}.decoder: found a vocabulary of {found} tokens, smaller than the tokenizer's {vocab_size}; "
                "allowed: the tokenizer that the decoder was trained with, or a larger vocabulary"
            )
        if num_layers is not None:
            check_number(f"{KEY}.num_layers", num_layers, 1, configs["decoder"].n_layer)
            configs["decoder"].n_layer = num_layers
        if path is not None and load_weights:
            return cls(pretrained_pair(path, configs), model_name)
        built = (
            build_encoder(encoder, configs["encoder"], load_weights),
            build_decoder(decoder, configs["decoder"], load_weights),
        )
        return cls(joined(*built), model_name)


def as_entries(part: str | dict | None, name: str) -> dict[str, Any]:
    """The configuration entries of a model of the hub, a folder or a config block."""
    if isinstance(part, dict):
        return dict(part)
    key = f"{KEY}.{name}"
    return loading.read_config(resolve_model_name(str(part), key), key)


def part_config(entries: dict[str, Any], overrides: dict | None, is_block: bool, name: str) -> Any:
    """The configuration of the encoder, or of the decoder with cross-attention."""
    key = f"{KEY}.{name}"
    model_type = entries["model_type"]
    if is_block:
        loading.check_keys(entries, model_type, (), key)
    entries = {**entries, "is_decoder": False}
    config: Any = loading.make_config(entries, key)
    loading.override(config, overrides or {}, (), f"{key}_overrides")
    config.is_decoder = config.add_cross_attention = name == "decoder"
    return config


def build_encoder(source: str | dict | None, config: Any, load_weights: bool) -> Any:
    key = f"{KEY}.encoder"
    if not isinstance(source, str) or not load_weights:
        return loading.random_model(config, None, key)
    path = resolve_model_name(source, key)
    return loading.pretrained_model(path, config, None, key, shortened=False)[0]


def build_decoder(source: str | dict | None, config: Any, load_weights: bool) -> Any:
    """The decoder; the checkpoint may lack its cross-attention."""
    config._attn_implementation = "sdpa"
    if not isinstance(source, str) or not load_weights:
        return GPT2LMHeadModel(config)
    key = f"{KEY}.decoder"
    path = resolve_model_name(source, key)
    may_lack = ("crossattention", "ln_cross_attn", "lm_head")
    return loading.load_checkpoint(GPT2LMHeadModel, path, config, key, may_lack)[0]


def pretrained_pair(path: str, configs: dict[str, Any]) -> VisionEncoderDecoderModel:
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(configs["encoder"], configs["decoder"])
    may_lack = ("encoder.pooler.", "decoder.lm_head")
    return loading.load_checkpoint(VisionEncoderDecoderModel, path, config, f"{KEY}.model_name", may_lack)[0]


def joined(encoder: Any, decoder: Any) -> VisionEncoderDecoderModel:
    """One model of both, whose configuration can be saved and read again."""
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder.config, decoder.config)
    return VisionEncoderDecoderModel(config=config, encoder=encoder, decoder=decoder)
