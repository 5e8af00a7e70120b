"""The policies that a command was given: files of one each, and files of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError, NotCalibratedError
from beem_plugin.common.params import apply_overrides, evaluate_document, load_config_dict
from beem_plugin.common.values import describe_value
from beem_plugin.comparison.policy_grid import Setting, expand
from beem_plugin.comparison.replay_files import shortest_names


@dataclass
class Variant:
    """
    # Parameters

    name : `str`
        As tables show it.
    where : `str`
        The file, and the entry in it, as errors name it.
    settings : `list[Setting]`
        One, or those of its grids.
    """

    name: str
    where: str
    settings: list[Setting]

    @property
    def is_sweep(self) -> bool:
        return len(self.settings) > 1 or bool(self.settings[0].swept)


def load_variants(policies: Sequence[str], files: Sequence[str], overrides: str) -> list[Variant]:
    """
    # Parameters

    policies : `Sequence[str]`
        Files with a policy's block each; it goes by the file's name, with its folder where two are called
        the same.
    files : `Sequence[str]`
        Files of variants: an object `{name: block}`, or a list of blocks, which go by their `type`.
    overrides : `str`
        Changes to every block.
    """
    names = shortest_names(policies)
    variants = [
        _variant(name, path, load_config_dict(path, overrides)) for name, path in zip(names, policies, strict=True)
    ]
    for path in files:
        for name, block in _blocks(path).items():
            where = f"{path}: {name}"
            try:
                variants.append(_variant(name, where, apply_overrides(block, overrides)))
            except BeemError as error:
                raise error if str(error).startswith(path) else error_at(where, error) from None
    if not variants:
        raise ConfigurationError("--policy: found no policy, allowed: one --policy FILE or --policies FILE or more")
    return variants


def error_at(where: str, error: BeemError) -> BeemError:
    """`error` with the place in front of its message."""
    kinds = (NotCalibratedError, DataError, ConfigurationError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), BeemError)
    return kind(f"{where}: {error}")


def _variant(name: str, where: str, block: dict[str, Any]) -> Variant:
    try:
        return Variant(name, where, expand(block))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _blocks(path: str) -> dict[str, dict[str, Any]]:
    """The entries of a file of variants, by name."""
    content = evaluate_document(path)
    if isinstance(content, dict) and isinstance(content.get("type"), str):
        raise ConfigurationError(
            f"{path}: found one policy block, allowed: {{name: block, ..}} or [block, ..]; give this one as --policy"
        )
    if isinstance(content, list) and content:
        named: dict[str, Any] = {}
        for index, block in enumerate(content):
            name = block.get("type", index) if isinstance(block, dict) else index
            same = sum(key == str(name) or key.startswith(f"{name} (") for key in named)
            named[f"{name} ({same + 1})" if same else str(name)] = block
        content = named
    if not isinstance(content, dict) or not content:
        raise ConfigurationError(
            f"{path}: found {describe_value(content)}, allowed: {{name: block, ..}} or [block, ..]"
        )
    for name, block in content.items():
        if not isinstance(block, dict):
            raise ConfigurationError(f"{path}: {name}: found {describe_value(block)}, allowed: a policy block {{...}}")
    return content
