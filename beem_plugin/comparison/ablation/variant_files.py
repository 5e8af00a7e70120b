"""Variants, configs that differ from a base: how files name them, and what differs, in one line."""

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.params import ABSENT, apply_overrides, diff_configs
from beem_plugin.comparison.plain_networks import plain_config
from beem_plugin.comparison.policy_grid import describe, shown_value
from beem_plugin.comparison.trainings.variants import BASE, Variant

SELECTIONS = ("best", "all")
SPECIAL_KEYS = ("name", "diff", "overrides", "grid", "select", "plain")
Change = tuple[str, Any, Any]


def read_variants(base: dict[str, Any], document: Any) -> list[Variant]:
    """
    The base itself, then the variants in the file's order, grids expanded. An error names the variant. `document` maps
    names to blocks, or is a list of blocks with a `name`. A block holds what differs: blocks in it are merged into the
    base's, and a dotted key, on any level, changes one value as `-o` does; `diff` and `overrides` may hold the same one
    level deeper. `grid` holds dotted keys with lists of values, and `select` says whether the "best" setting on
    validation data is kept (default), or "all". `plain` lists depths: the first layers of the encoder, each a network
    without exits; `{"plain": [4, 6]}` is short for `{"plain": {"plain": [4, 6]}}`.
    """
    variants = [Variant(BASE, base, BASE)]
    for name, block in named_blocks(document):
        block = {"plain": block} if name == "plain" and isinstance(block, list) else block
        if not isinstance(block, dict):
            raise ConfigurationError(f"variant {name!r}: found {block!r}, allowed: an object with what differs")
        try:
            variants += expand(base, name, block)
        except ConfigurationError as error:
            raise ConfigurationError(f"variant {name!r}: {error}") from error
    seen: set[str] = set()
    for variant in variants:
        if variant.name in seen:
            raise ConfigurationError(f"variant {variant.name!r}: two of this name ({BASE!r} is the base itself)")
        seen.add(variant.name)
    return variants


def named_blocks(document: Any) -> list[tuple[str, Any]]:
    if isinstance(document, Mapping):
        return [(str(name), block) for name, block in document.items()]
    if not isinstance(document, list):
        raise ConfigurationError(
            f"variants: found a {type(document).__name__}, allowed: an object name -> diff, or a list of objects"
        )
    blocks = []
    for index, block in enumerate(document):
        if not isinstance(block, Mapping) or not isinstance(block.get("name"), str):
            raise ConfigurationError(f"variants.{index}: found {block!r}, allowed: an object with a `name`")
        blocks.append((block["name"], dict(block)))
    return blocks


def expand(base: dict[str, Any], name: str, block: dict[str, Any]) -> list[Variant]:
    """One variant, or one for each setting of its grid, or for each depth of plain networks."""
    if "plain" in block:
        rest = {key: value for key, value in block.items() if key != "plain"}
        depths = block["plain"] if isinstance(block["plain"], list) else [block["plain"]]
        if not depths or any(type(one) is not int or one < 1 for one in depths):
            raise ConfigurationError(
                f"plain: found {block['plain']!r}, allowed: a list of numbers of layers, as in [4, 6, 8]"
            )
        return [
            replace(variant, plain=layers, family=variant.family if variant.is_candidate else name)
            for layers in depths
            for variant in expand(plain_config(base, layers), f"{name} {layers}", rest)
        ]
    config = change(base, {key: value for key, value in block.items() if key not in SPECIAL_KEYS})
    for key in ("diff", "overrides"):
        value = block.get(key) or {}
        if not isinstance(value, dict):
            raise ConfigurationError(f"{key}: found {value!r}, allowed: an object")
        config = change(config, value) if key == "diff" else apply_overrides(config, value)
    grid, selection = block.get("grid"), block.get("select", "best")
    if grid is None:
        if "select" in block:
            raise ConfigurationError("select: allowed with a `grid` only")
        return [Variant(name, config, name)]
    check_choice("select", selection, SELECTIONS)
    if not isinstance(grid, dict) or not grid:
        raise ConfigurationError(f"grid: found {grid!r}, allowed: an object of dotted keys, each with a list of values")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigurationError(f"grid.{key}: found {values!r}, allowed: a list of one value or more")
    variants = []
    for values in itertools.product(*grid.values()):
        setting = dict(zip(grid, values, strict=True))
        changed = apply_overrides(copy.deepcopy(config), copy.deepcopy(setting))
        variants.append(Variant(f"{name}[{shown_setting(setting)}]", changed, name, setting, selection == "best"))
    return variants


def change(config: dict[str, Any], diff: dict[str, Any]) -> dict[str, Any]:
    """`config` with the blocks of `diff` merged in; then its dotted keys, on whatever level, as overrides."""
    dotted: dict[str, Any] = {}
    plain = without_dotted(copy.deepcopy(diff), "", dotted)
    return apply_overrides(merge(copy.deepcopy(config), plain), dotted)


def merge(old: Any, new: Any) -> Any:
    """jsonnet's `+:` on every level; a block whose `type` changes is replaced: its parameters are another class's."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    if "type" in old and new.get("type", old["type"]) != old["type"]:
        return new
    return {**old, **{key: merge(old[key], value) if key in old else value for key, value in new.items()}}


def without_dotted(block: Any, prefix: str, dotted: dict[str, Any]) -> Any:
    """`block` without its dotted keys, which go to `dotted` under their whole path."""
    if not isinstance(block, dict):
        return block
    plain = {}
    for key, value in block.items():
        if "." in key:
            dotted[prefix + key] = value
        else:
            plain[key] = without_dotted(value, f"{prefix}{key}.", dotted)
    return plain


def shown_setting(setting: Mapping[str, Any]) -> str:
    """`batch_size=8, lr=2e-05`: the last word of each key, or the whole keys where these are the same."""
    words = [key.rsplit(".", 1)[-1] for key in setting]
    names = words if len(set(words)) == len(words) else list(setting)
    return describe(dict(zip(names, setting.values(), strict=True)))


def values_of(block: Any, key: str = "") -> dict[str, Any]:
    """Every value in a block at `key` by its whole key, blocks inside taken apart."""
    return {name: value for name, _, value in diff_configs({}, block, key)}


def flat(found: list[Change]) -> dict[str, Any]:
    """Every changed value by its whole key, blocks taken apart; `None` for what is no longer there."""
    values: dict[str, Any] = {}
    for key, _, new in found:
        values |= values_of(new, key) if isinstance(new, dict) else {key: None if new is ABSENT else new}
    return values


def in_one_line(found: list[Change], whole_keys: bool = False) -> str:
    """`weights={type: cost, scale: 0.1}; optimizer.lr=5e-05`; `-key` for what is gone; or `nothing`."""
    parts = []
    for key, _, new in found:
        name = key if whole_keys else ".".join(key.split(".")[-2:])
        parts.append(f"-{name}" if new is ABSENT else f"{name}={shown_block(new)}")
    return "; ".join(parts) or "nothing"


def shown_block(value: Any) -> str:
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda item: item[0] != "type")
        return "{" + ", ".join(f"{key}: {shown_block(item)}" for key, item in ordered) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown_block, value)) + "]"
    return shown_value(value)


def to_json(found: list[Change]) -> list[dict[str, Any]]:
    """A list of `{"key", "base", "variant"}`; a side that lacks the key has no entry."""
    rows = []
    for key, old, new in found:
        sides = {"base": old, "variant": new}
        rows.append({"key": key, **{side: value for side, value in sides.items() if value is not ABSENT}})
    return json.loads(json.dumps(rows))
