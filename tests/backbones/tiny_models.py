"""Tiny random models of every family, and batches for them."""

from __future__ import annotations

from typing import Any

import torch

from beem_plugin.backbones import Backbone, TransformerBackbone
from beem_plugin.common.registry import Params
from tests.built_once import built_once

SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
BERT = {**SHAPE, "intermediate_size": 48, "max_position_embeddings": 40}

# Each family in its usual shape, and with the options that change its blocks.
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **BERT},
    "roberta": {"model_type": "roberta", **BERT, "pad_token_id": 1},
    "xlm-roberta": {"model_type": "xlm-roberta", **BERT, "pad_token_id": 1},
    "camembert": {"model_type": "camembert", **BERT, "pad_token_id": 1},
    "electra": {"model_type": "electra", **BERT, "embedding_size": 32},
    "electra-projected": {"model_type": "electra", **BERT, "embedding_size": 16},
    "albert": {"model_type": "albert", **BERT, "embedding_size": 16},
    "albert-groups": {"model_type": "albert", **BERT, "embedding_size": 16, "num_hidden_groups": 2},
    "albert-inner": {"model_type": "albert", **BERT, "embedding_size": 16, "inner_group_num": 2},
    "distilbert": {
        "model_type": "distilbert",
        **{"vocab_size": 60, "dim": 32, "n_layers": 4, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 40},
    },
    "mpnet": {"model_type": "mpnet", **BERT, "pad_token_id": 1},
    "deberta-v2": {
        "model_type": "deberta-v2",
        **BERT,
        "relative_attention": True,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "deberta-v2-convolution": {
        "model_type": "deberta-v2",
        **BERT,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "conv_kernel_size": 3,
        "type_vocab_size": 2,
    },
    "deberta-v2-absolute": {"model_type": "deberta-v2", **BERT},
    "modernbert": {"model_type": "modernbert", **SHAPE, "intermediate_size": 48, "pad_token_id": 1},
    # Two tokens to each side, so that the local window is shorter than the inputs of the tests.
    "modernbert-local": {
        "model_type": "modernbert",
        **SHAPE,
        "intermediate_size": 48,
        "pad_token_id": 1,
        "local_attention": 4,
    },
}
LENGTHS = (12, 5, 9, 3)


def build(**block: Any) -> TransformerBackbone:
    """A backbone from a config block."""
    backbone = Backbone.from_params(Params(block))
    assert isinstance(backbone, TransformerBackbone)
    return backbone


def tiny(name: str, **block: Any) -> TransformerBackbone:
    """The tiny random model of a row of `CONFIGS`, with weights large enough that a wrong mask shows."""
    return built_once(_large, config=dict(CONFIGS[name]), **block)


def _large(**block: Any) -> TransformerBackbone:
    torch.manual_seed(13)
    backbone = build(**block)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return backbone


def make_batch(backbone: Backbone, lengths: tuple[int, ...] = LENGTHS, token_types: bool = False) -> dict:
    """Random tokens, padded to the right with the model's own padding id."""
    generator = torch.Generator().manual_seed(5)
    shape = (len(lengths), max(lengths))
    mask = (torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]).long()
    input_ids = torch.randint(3, 60, shape, generator=generator)
    batch = {"input_ids": input_ids.masked_fill(mask == 0, backbone.config.pad_token_id), "attention_mask": mask}
    if token_types:
        batch["token_type_ids"] = (torch.arange(shape[1])[None] >= 2).long() * mask
    return batch


def full_forward(backbone: TransformerBackbone, batch: dict) -> tuple[torch.Tensor, ...]:
    """The hidden states that transformers returns for the batch."""
    return backbone.transformer_model(**batch, output_hidden_states=True).hidden_states
