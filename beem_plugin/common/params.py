"""Configs: jsonnet, json or yaml in, plain data out, with AllenNLP's overrides. Only here is jsonnet evaluated."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beem_plugin.common.errors import ConfigurationError, nearest_first

if TYPE_CHECKING:
    from beem_plugin.common.registry import Params

#: What `diff_configs` gives for the side on which a key is missing.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "(absent)", "__bool__": lambda self: False})()

# Python keeps the bytes of an environment variable that are no UTF-8 as lone surrogates, which jsonnet refuses. They
# travel through it as private characters.
_SURROGATES = {0xDC80 + i: 0x10DC80 + i for i in range(128)}
_BACK_TO_SURROGATES = {private: surrogate for surrogate, private in _SURROGATES.items()}
_PLACE = re.compile(r"^\t?(?P<place>\S[^\t\n]*?:(?:\(\d+:\d+\)-\(\d+:\d+\)|\d+:\d+(?:-\d+)?))", re.MULTILINE)
_MISSING_VARIABLE = re.compile(r"undefined external variable: (?P<name>\S+)")

OPTIONAL_VARIABLES = {
    "GLUE_DIR": "",
    "BEEM_BACKBONE": "",
    "FLICKR8K_FILE": "",
    "CAPTION_TEXT": "",
    "CAPTION_LM": "",
    "IMAGE_ENCODER": "",
}
"""What the shipped configs read from the environment, and what it is where the environment has none."""


def load_config(
    path: str | Path, overrides: str | Mapping[str, Any] = "", ext_vars: Mapping[str, str] | None = None
) -> Params:
    """
    A config as `Params`.

    # Parameters

    path : `str` or `Path`
        A jsonnet, json or yaml file.
    overrides : `str` or `dict`, optional
        AllenNLP's `-o`: see `apply_overrides`.
    ext_vars : `dict[str, str]`, optional
        For `std.extVar`, before the environment.
    """
    from beem_plugin.common.registry import Params

    return Params(load_config_dict(path, overrides, ext_vars))


def load_config_dict(
    path: str | Path, overrides: str | Mapping[str, Any] = "", ext_vars: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Like `load_config`, as plain data."""
    config = apply_overrides(evaluate_jsonnet(path, ext_vars), overrides, ext_vars)
    check_numbers(config, f"config {path}: ")
    return config


def check_numbers(config: Any, what: str = "") -> None:
    """Raises a `ConfigurationError` that names the key of a number that is not finite, or too large for 64 bits."""
    pending = [("", config)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{key}.{name}" if key else str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{key}.{number}", item) for number, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{what}{key}: found {value}, allowed: a finite number")
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigurationError(
                f"{what}{key}: found an integer of {len(str(abs(value)))} digits, allowed: 64 bits"
            )


def evaluate_jsonnet(path: str | Path, ext_vars: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The content of a jsonnet, json or yaml file. `std.extVar` reads `ext_vars` and the environment."""
    config = evaluate_document(path, ext_vars)
    if not isinstance(config, dict):
        raise ConfigurationError(f"config {path}: found a {type(config).__name__}, expected an object {{...}}")
    return config


def evaluate_document(path: str | Path, ext_vars: Mapping[str, str] | None = None) -> Any:
    """Like `evaluate_jsonnet`, of a file that may hold a list, or anything else."""
    path = Path(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise ConfigurationError(f"config {path}: {what}")
    return _evaluate_yaml(path) if path.suffix in (".yml", ".yaml") else _evaluate_json(path, ext_vars)


def parse_overrides(overrides: str | Mapping[str, Any], ext_vars: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Overrides as a dict; a string is jsonnet itself."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    if not overrides.strip():
        return {}
    import _jsonnet

    try:
        text = _jsonnet.evaluate_snippet("overrides", overrides, ext_vars=_external_variables(ext_vars))
    except RuntimeError as error:
        raise ConfigurationError(_jsonnet_message(str(error), "overrides")) from None
    parsed = json.loads(text.translate(_BACK_TO_SURROGATES))
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"overrides: found {overrides!r}, expected an object like {{'trainer.num_epochs': 3}}")
    return parsed


def apply_overrides(
    config: dict[str, Any], overrides: str | Mapping[str, Any], ext_vars: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    AllenNLP's semantics: `{"trainer.num_epochs": 3}` changes or adds one key, `{"model": {...}}` replaces a whole
    block, `{"trainer.callbacks.0.type": "..."}` reaches into a list. The parent of a key must exist.
    """
    changes = parse_overrides(overrides, ext_vars)
    if not changes:
        return config
    from tango.common.params import with_overrides

    for key, value in changes.items():
        try:
            with_overrides(config, {key: value})
        except (ValueError, KeyError, IndexError) as error:
            near = nearest_first(key, _key_paths(config))[:5]
            raise ConfigurationError(
                f"override {key!r}: the config has no such key, the nearest are: {', '.join(near)}"
            ) from error
    try:
        return with_overrides(config, changes)
    except (ValueError, KeyError, IndexError) as error:
        names = ", ".join(changes)
        raise ConfigurationError(f"overrides {names}: one replaces what another reaches into") from error


def diff_configs(a: Any, b: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """
    What differs between two configs, key by key: `(key, value in a, value in b)`, `ABSENT` on the side that lacks the
    key. Items of a list that holds blocks are compared one by one, as `key.0`, the form that overrides take.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        names = [*a, *(name for name in b if name not in a)]
        return _diff_items(key, ((str(name), a.get(name, ABSENT), b.get(name, ABSENT)) for name in names))
    if _is_block_list(a) and _is_block_list(b) and (a or b):
        count = max(len(a), len(b))
        get = lambda items, i: items[i] if i < len(items) else ABSENT  # noqa: E731
        return _diff_items(key, ((str(i), get(a, i), get(b, i)) for i in range(count)))
    if a is ABSENT and isinstance(b, dict) and b:
        return diff_configs({}, b, key)
    if b is ABSENT and isinstance(a, dict) and a:
        return diff_configs(a, {}, key)
    return [] if _equal(a, b) else [(key, a, b)]


def _diff_items(key: str, items: Any) -> list[tuple[str, Any, Any]]:
    prefix = f"{key}." if key else ""
    return [difference for name, a, b in items for difference in diff_configs(a, b, prefix + name)]


def _equal(a: Any, b: Any) -> bool:
    # 1 == True in Python, but they are different things to write in a config.
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _is_block_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _key_paths(config: Any, prefix: str = "") -> list[str]:
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    paths = []
    for key, value in items:
        paths += [f"{prefix}{key}", *_key_paths(value, f"{prefix}{key}.")]
    return paths


def _evaluate_json(path: Path, ext_vars: Mapping[str, str] | None) -> Any:
    if path.suffix == ".json":
        try:  # an archived config may hold escapes that jsonnet refuses, and needs no evaluation
            return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_key_once)
        except ValueError:
            pass  # jsonnet says what is wrong, and where
    import _jsonnet

    try:
        text = _jsonnet.evaluate_file(str(path), ext_vars=_external_variables(ext_vars))
    except RuntimeError as error:
        raise ConfigurationError(_jsonnet_message(str(error), str(path))) from None
    return json.loads(text.translate(_BACK_TO_SURROGATES))


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values; of a key that stands twice, json would silently drop the first."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate field")
    return found


def _evaluate_yaml(path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice, of which yaml would silently drop the first."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:str":
                    if key.value in seen:
                        problem = f"duplicate key {key.value}"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"config {path}: {' '.join(str(error).split())}") from None


def _external_variables(ext_vars: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (ext_vars or {}).items():
        if not isinstance(value, str):
            raise ConfigurationError(f"external variable {name}: found {value!r}, expected a string")
    variables = {**OPTIONAL_VARIABLES, **os.environ, **(ext_vars or {})}
    return {name.translate(_SURROGATES): value.translate(_SURROGATES) for name, value in variables.items()}


def _jsonnet_message(text: str, source: str) -> str:
    """jsonnet's error in one line, its place (file:line:column) first."""
    kind, _, rest = text.partition(": ")
    place = _PLACE.search(rest)
    where = place["place"] if place else source
    missing = _MISSING_VARIABLE.search(text)
    if missing:
        return f"{where}: the environment variable {missing['name']} is not set, and the config reads it by std.extVar"
    message = rest.split("\n\t")[0].strip()
    if place and message.startswith(where):
        message = message[len(where) :].lstrip(": ")
    return f"{where}: {' '.join(message.split())} (jsonnet {kind.lower()})"
