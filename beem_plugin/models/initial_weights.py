"""Initial weights from another trained model."""

import logging
import re
from pathlib import Path

import torch

from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.common.archive_files import find_weights, opened_archive, read_state
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import FromParams

logger = logging.getLogger(__name__)

TEXT_ONLY = [r"transformer_model\.encoder\.", r"enc_to_dec_proj", r"crossattention", r"ln_cross_attn"]
"""Parameters that are not trained in a language model without images."""


class InitialWeights(FromParams):
    """
    Copies parameters of the same name from another model's archive. A string is short for `{"archive": string}`.

    # Parameters

    archive : `str`
        A `model.tar.gz`, a serialization directory, or a weights file (`.safetensors`, `.th`).
    include : `list[str]`, optional (default = `["^decoder\\\\."]`)
        Regular expressions; a parameter is copied if its name matches one of them and none of `exclude`.
    exclude : `list[str]`, optional (default = image encoder and cross-attention)
        The default is for an archive whose decoder was trained on text only. `[]` excludes nothing.
    """

    def __init__(self, archive: str, include: list[str] | None = None, exclude: list[str] | None = None) -> None:
        self.archive = archive
        self.include = [re.compile(pattern) for pattern in include or [r"^decoder\."]]
        self.exclude = [re.compile(pattern) for pattern in (TEXT_ONLY if exclude is None else exclude)]

    def copy_into(self, model: torch.nn.Module) -> list[str]:
        """Returns the names of the copied parameters; raises `ConfigurationError` if none fits or a shape differs."""
        state = model.state_dict()
        found = {
            name: value for name, value in renamed(read_weights(self.archive), state).items() if self.matches(name)
        }
        common = [name for name in found if name in state]
        if not common:
            raise ConfigurationError(f"model.initialize_from: {self.archive} has no parameter in common with the model")
        for name in common:
            if found[name].shape != state[name].shape:
                raise ConfigurationError(
                    f"model.initialize_from: {name} has shape {tuple(found[name].shape)} in {self.archive}, the model "
                    f"has {tuple(state[name].shape)}; allowed: the same decoder and tokenizer, or an `exclude` that "
                    "leaves it out"
                )
        model.load_state_dict({name: found[name] for name in common}, strict=False)
        unchanged = sorted(name for name in state if self.matches(name) and name not in found)
        logger.info("initialised %d parameters from %s, %d are unchanged", len(common), self.archive, len(unchanged))
        return common

    def matches(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.include) and not any(
            pattern.search(name) for pattern in self.exclude
        )


def read_weights(path: str) -> dict[str, torch.Tensor]:
    if Path(path).suffix in (".safetensors", ".th"):
        if not Path(path).exists():
            raise ConfigurationError(f"model.initialize_from: {path}: no such weights file")
        return read_state(Path(path))
    with opened_archive(path) as folder:
        return read_state(find_weights(folder, None))
