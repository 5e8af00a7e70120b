"""Captioners with random weights, small enough to run in milliseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import beem_plugin.components  # noqa: F401  registers everything
from beem_plugin.data import Vocabulary
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model, MultiExitCaptioner
from tests.built_once import built_once

WORDS = 50
BOS, EOS = 0, 1
TOKENIZER = SimpleNamespace(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS, vocab_size=WORDS)
VIT = {
    "model_type": "vit",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
}
# Weights this large make every exit say something else, and captions end at different lengths.
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 6,
    "n_head": 4,
    "n_positions": 32,
    "initializer_range": 0.6,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def captioner(seed: int = 0, end: float = 1.6, **keys: Any) -> MultiExitCaptioner:
    """
    In evaluation mode; keys of `decoder` are added to the tiny one's. The end token's row of the vocabulary is made
    `end` times longer, so that it is more probable than others, and captions have different lengths.
    """
    return built_once(_captioner, seed=seed, end=end, **keys)


def _captioner(seed: int, end: float, **keys: Any) -> MultiExitCaptioner:
    torch.manual_seed(seed)
    decoder = {"backbone": {"encoder": VIT, "decoder": GPT2}, **keys.pop("decoder", {})}
    model = Model.from_params(
        {"type": "multi_exit_captioner", "decoder": decoder, **keys},
        vocab=Vocabulary([]),
        tokenizer=TOKENIZER,
        metric="accuracy",
        is_regression=False,
    )
    assert isinstance(model, MultiExitCaptioner)
    with torch.no_grad():
        model.decoder.backbone.decoder.language_model.transformer.wte.weight[EOS] *= end
    return model.eval()


def settled(seed: int = 4, **keys: Any) -> MultiExitCaptioner:
    """
    A captioner that says the same with every release of torch and on every device: numpy draws its weights, which are
    small enough that rounding of float32 moves nobody to another exit, which the tests of captured decoding hold.
    """
    model = captioner(**keys)
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(generator.normal(0.0, 0.25, tuple(parameter.shape))))
        model.decoder.backbone.decoder.language_model.transformer.wte.weight[EOS] *= 1.6
    return model


def settled_images(count: int = 7) -> Tensor:
    """Float64."""
    return torch.from_numpy(np.random.default_rng(1).normal(size=(count, 3, 16, 16)))


def images(count: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def batch(captions: int = 5, seed: int = 2, padding: int = EOS) -> dict[str, Tensor]:
    """Random captions of different lengths, with images."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, WORDS, (captions, 9), generator=generator)
    tokens[:, 0] = BOS
    mask = torch.ones_like(tokens)
    for row in range(captions):
        end = 4 + row % 5
        tokens[row, end], tokens[row, end + 1 :], mask[row, end + 1 :] = EOS, padding, 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "pixel_values": images(captions, seed),
        "index": torch.arange(captions),
    }


def policy(**config: Any) -> ExitPolicy:
    return ExitPolicy.from_params(config)
