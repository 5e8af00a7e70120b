"""The fixtures of all tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.triton_interpreter import keep_lookups

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported; kernels then run on the CPU
    keep_lookups()
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from beem_plugin.data import TextEncoder
from tests.tiny_project import CONFIGS, write_backbone, write_glue

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["a", "good", "bad", "film", "the", "end"]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]")  # type: ignore[arg-type]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=20,
    ).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def encoder(tokenizer_folder: Path) -> TextEncoder:
    return TextEncoder(str(tokenizer_folder))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models run faster on one thread, and the same on every machine."""
    torch.set_num_threads(1)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed: figures take longer than the training of a tiny model."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="session")
def tiny_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables under which the shipped GLUE configs train a tiny model on tiny data."""
    folder = tmp_path_factory.mktemp("project")
    return {
        "BEEM_BACKBONE": str(write_backbone(folder / "backbone")),
        "BEEM_POOLER": "mean",
        "GLUE_DIR": str(write_glue(folder / "glue")),
    }


@pytest.fixture(scope="session")
def trained(tiny_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The serialization directory of a tiny model, trained on SST-2 and calibrated through the shipped config."""
    import beem_plugin.components  # noqa: F401
    from beem_plugin.common.params import load_config
    from beem_plugin.training.train import train_model

    directory = tmp_path_factory.mktemp("trained") / "run"
    overrides = {
        "trainer.num_epochs": 6,
        "trainer.optimizer.lr": 2e-3,
        "trainer.cuda_device": -1,
        "trainer.callbacks.0.data": "train[holdout]",
        "dataset_reader.holdout_fraction": 0.3,
    }
    params = load_config(CONFIGS / "sst2_beem.jsonnet", overrides, ext_vars=tiny_environment)
    train_model(params, directory)
    return directory


@pytest.fixture(scope="session")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The folder of a tiny captioner: `run/`, trained on the Karpathy split `data/dataset_colours.json`, whose images are
    in `data/images/`.
    """
    import beem_plugin.components  # noqa: F401
    from beem_plugin.common.registry import Params
    from beem_plugin.training.train import train_model
    from tests.tiny_captions import captioned_colours, train_config

    folder = tmp_path_factory.mktemp("captioner")
    reader = {
        "type": "karpathy_captions",
        "file": str(captioned_colours(folder / "data")),
        "tokenizer": {"type": "trained_bpe", "vocab_size": 300},
        "image_processor": {"size": 16},
        "max_instances": 1000,
    }
    train_model(Params(train_config(reader)), folder / "run")
    return folder
