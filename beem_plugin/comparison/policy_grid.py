"""
Parameter grids in a policy block: one block, many settings.

A key is swept where its value is

- `{"grid": [..]}`: these values, whatever they are;
- `{"linspace": [a, b, n]}`: n numbers from a to b;
- `{"quantiles": n}`: for `thresholds` of a rule with a score, n of the scores seen and never, each for all exits;
- a list, where the constructor takes a number, a string or true/false and no list: `"patience": [2, 3, 4]`.

So a list of `thresholds` stays what it always was, one threshold an exit. Several swept keys are all combinations.
"""

import collections.abc
import enum
import inspect
import itertools
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from beem_plugin.common.errors import ConfigurationError, is_number
from beem_plugin.common.recipes import constructor_of, signature_of
from beem_plugin.common.registry import Registrable
from beem_plugin.common.values import bare, describe_value
from beem_plugin.exits.policies import ExitPolicy

SCALARS = (int, float, str, bool)
LISTS = (list, tuple, set, frozenset, collections.abc.Iterable)
MAX_SETTINGS = 100_000
SWEEPS = ("grid", "linspace", "quantiles")


@dataclass(frozen=True)
class Quantiles:
    """Stands for `count` thresholds that are not known before the rule has been fitted."""

    count: int


@dataclass
class Setting:
    """
    One of the settings of a block: its `config`, without grids, in which a `Quantiles` may stand for a threshold; and
    the swept values by dotted key, `along` the policy's accuracy-speed curve, or `apart`: settings that agree in these
    are one family with one curve.
    """

    config: dict[str, Any]
    along: dict[str, Any] = field(default_factory=dict)
    apart: dict[str, Any] = field(default_factory=dict)

    @property
    def swept(self) -> dict[str, Any]:
        return {**self.apart, **self.along}


def expand(block: dict[str, Any]) -> list[Setting]:
    """All settings of a policy's block; one if it has no grid. A wrong grid is an error that names its key."""
    settings = list(itertools.islice(_alternatives(block, ExitPolicy, "", False), MAX_SETTINGS + 1))
    if len(settings) > MAX_SETTINGS:
        raise ConfigurationError(f"the policy's grids: found more than {MAX_SETTINGS:,} settings, allowed: up to that")
    return settings


def describe(swept: dict[str, Any]) -> str:
    """`patience=3, weights.scale=0.1`"""
    return ", ".join(f"{key}={shown_value(value)}" for key, value in swept.items())


def _alternatives(value: Any, annotation: Any, path: str, along: bool) -> Iterator[Setting]:
    """The settings of `value`, the value of the key `path`; `along`: whether that key belongs to the curve."""
    items = _swept_items(value, annotation, path)
    if items is not None:
        for item in items:
            # A list inside is no further sweep: it fails where the policy is built, as it would without the sweep.
            for found in _alternatives(item, annotation if isinstance(item, dict) else None, path, along):
                swept = {path: found.config}
                yield Setting(found.config, along=swept) if along else Setting(found.config, apart=swept)
        return
    arguments: Mapping[str, Any] = {}
    speed_keys: tuple[str, ...] | None = ()
    if isinstance(value, dict) and (found_class := _class_of(value, annotation)) is not None:
        arguments, kind = signature_of(*found_class).arguments, found_class[1]
        speed_keys = kind.speed_keys if kind is not None and issubclass(kind, ExitPolicy) else ()
    elif not isinstance(value, dict | list):
        yield Setting(value)
        return
    choices = []
    items_by_key: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items_by_key:
        hint = arguments[key].annotation if key in arguments else None
        belongs = along or speed_keys is None or key in speed_keys
        choices.append(list(_alternatives(inner, hint, f"{path}.{key}" if path else key, belongs)))
    for parts in itertools.product(*choices):
        configs: Any = [part.config for part in parts]
        yield Setting(
            dict(zip(value, configs, strict=True)) if isinstance(value, dict) else configs,
            along={name: entry for part in parts for name, entry in part.along.items()},
            apart={name: entry for part in parts for name, entry in part.apart.items()},
        )


def _swept_items(value: Any, annotation: Any, path: str) -> list[Any] | None:
    """The values to be tried, or `None` if `value` is one itself."""
    if isinstance(value, list):
        if not _takes_scalar_only(annotation):
            return None
        if not value:
            raise ConfigurationError(f"{path}: found an empty list, allowed: one value, or a list of those to be tried")
        return value
    if not isinstance(value, dict):
        return None
    if len(value) > 1 and set(value) <= set(SWEEPS):
        raise ConfigurationError(f"{path}: found {' and '.join(value)}, allowed: one of {', '.join(SWEEPS)}")
    if len(value) != 1:
        return None
    (name, given) = next(iter(value.items()))
    if name == "grid":
        if not isinstance(given, list) or not given:
            hint = "; a strategy's own grid has its `type` beside it" if path.endswith("thresholds") else ""
            raise ConfigurationError(f"{path}.grid: found {describe_value(given)}, allowed: a list of values{hint}")
        return given
    if name == "linspace":
        is_valid = isinstance(given, list) and len(given) == 3 and all(map(is_number, given))
        if not is_valid or given[2] != int(given[2]) or not 1 <= given[2] <= MAX_SETTINGS:
            raise ConfigurationError(f"{path}.linspace: found {describe_value(given)}, allowed: [from, to, count]")
        return list(np.linspace(given[0], given[1], int(given[2])).tolist())
    if name == "quantiles":
        if path.split(".")[-1] != "thresholds":
            raise ConfigurationError(
                f"{path}.quantiles: found quantiles, allowed: for `thresholds`, which are compared with scores; "
                'use {"grid": [..]} or {"linspace": [from, to, count]}'
            )
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_SETTINGS:
            raise ConfigurationError(
                f"{path}.quantiles: found {describe_value(given)}, allowed: an integer from 1 to {MAX_SETTINGS:,}"
            )
        return [Quantiles(given)]
    return None


def _members(annotation: Any) -> list[Any]:
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _takes_scalar_only(annotation: Any) -> bool:
    """Whether a number, a string or true/false fits, and a list does not. `Any` takes lists."""
    scalar = False
    for member in _members(annotation) if annotation is not None else [Any]:
        kind = get_origin(member) or member
        if member is Any or (
            inspect.isclass(kind) and kind is not str and issubclass(kind, LISTS) and kind is not dict
        ):
            return False
        scalar |= kind is Literal or (inspect.isclass(kind) and issubclass(kind, (*SCALARS, enum.Enum)))
    return scalar


def _class_of(block: dict[str, Any], annotation: Any) -> tuple[Any, type | None] | None:
    """What `block` is built with, and what that is of; `None` if that cannot be told: building it will say why."""
    for member in _members(annotation) if annotation is not None else []:
        if not (inspect.isclass(member) and issubclass(member, Registrable)):
            continue
        name = block.get("type", member.default_implementation)
        if name in member.list_available():
            found, constructor = member.resolve_class_name(name)
            return (constructor_of(found) if constructor is None else getattr(found, constructor)), found
    return None


def shown_value(value: Any) -> str:
    if isinstance(value, Quantiles):
        return f"{value.count} quantiles"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
