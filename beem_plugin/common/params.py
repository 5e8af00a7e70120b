"""Configs from jsonnet, json or yaml files as plain data, with AllenNLP's overrides."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beem_plugin.common.encoder_reads import reads
from beem_plugin.common.errors import ConfigurationError, nearest_first
from beem_plugin.common.strict_json import each_key_once

if TYPE_CHECKING:
    from beem_plugin.common.registry import Params

#: Stands in `diff_configs` for a missing key.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "(absent)", "__bool__": lambda self: False})()

# Bytes of an environment variable that are not UTF-8 are lone surrogates in Python, which jsonnet refuses. They are
# replaced by private characters for jsonnet.
_SURROGATES = {0xDC80 + i: 0x10DC80 + i for i in range(128)}
_BACK_TO_SURROGATES = {private: surrogate for surrogate, private in _SURROGATES.items()}
_POSITION = r"(?:\(\d+:\d+\)-\(\d+:\d+\)|\d+:\d+(?:-\d+)?)"
_PLACE = re.compile(rf"^\t?(?P<place>(?!std\.jsonnet:)\S[^\t\n]*?:{_POSITION})", re.MULTILINE)
_MISSING_VARIABLE = re.compile(r"undefined external variable: (?P<name>\S+)")

PRESETS = Path(__file__).parent.parent / "presets"
"""On jsonnet's library path: `import 'beem/methods.libsonnet'` works in any config."""
OPTIONAL_VARIABLES = dict.fromkeys(
    ("GLUE_DIR", "BEEM_BACKBONE", "BEEM_POOLER", "FLICKR8K_FILE", "CAPTION_TEXT", "CAPTION_LM", "IMAGE_ENCODER"), ""
)
"""Environment variables of the shipped configs, with their defaults."""


def load_config(
    path: str | Path, overrides: str | Mapping[str, Any] = "", ext_vars: Mapping[str, str] | None = None
) -> Params:
    """A config file as `Params`, with AllenNLP's `-o`; `std.extVar` reads `ext_vars` before the environment."""
    from beem_plugin.common.registry import Params

    return Params(load_config_dict(path, overrides, ext_vars))


def load_config_dict(
    path: str | Path, overrides: str | Mapping[str, Any] = "", ext_vars: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Like `load_config`, as plain data."""
    config = evaluate_document(path, ext_vars)
    if not isinstance(config, dict):
        raise ConfigurationError(f"config {path}: found a {type(config).__name__}, expected an object {{...}}")
    config = apply_overrides(config, overrides, ext_vars)
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


def evaluate_document(path: str | Path, ext_vars: Mapping[str, str] | None = None) -> Any:
    """The value in a jsonnet, json or yaml file."""
    path = Path(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise ConfigurationError(f"config {path}: {what}")
    if path.suffix in (".gz", ".csv", ".tsv", ".jsonl", ".npz"):
        raise ConfigurationError(f"config {path}: found a {path.suffix} file, allowed: .jsonnet, .json or .yaml")
    if path.suffix in (".yml", ".yaml"):
        return _evaluate_yaml(path)
    if path.suffix == ".json":
        try:  # an archived config may hold escapes that jsonnet refuses, and needs no evaluation
            return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=each_key_once)
        except ValueError:
            pass  # jsonnet's message names the place
    return _evaluate("evaluate_file", str(path), ext_vars)


def parse_overrides(
    overrides: str | Mapping[str, Any], ext_vars: Mapping[str, str] | None = None, where: str = "overrides"
) -> dict[str, Any]:
    """Overrides, or another block, as a dict; a string is evaluated as jsonnet. Errors start with `where`."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    if not overrides.strip():
        return {}
    parsed = _evaluate("evaluate_snippet", where, ext_vars, overrides)
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{where}: found {overrides!r}, expected an object like {{'trainer.num_epochs': 3}}")
    return parsed


def apply_overrides(
    config: dict[str, Any], overrides: str | Mapping[str, Any], ext_vars: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    AllenNLP's semantics: `{"trainer.num_epochs": 3}` changes or adds one key, `{"model": {...}}` replaces a block,
    `{"trainer.callbacks.0.type": "..."}` changes an item of a list. The parent of a key must exist.
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


def diff_configs(a: Any, b: Any, key: str = "", whole_blocks: bool = False) -> list[tuple[str, Any, Any]]:
    """
    `(key, value in a, value in b)` of each difference, `ABSENT` for a missing key; lists of blocks item by item. With
    `whole_blocks`, a block whose `type` differs, or that only one side has, is one difference: its keys mean other
    things.
    """
    if a is ABSENT and isinstance(b, dict) and b and not whole_blocks:
        a = {}
    if b is ABSENT and isinstance(a, dict) and a and not whole_blocks:
        b = {}
    if _is_block_list(a) and _is_block_list(b):
        a, b = ({str(number): item for number, item in enumerate(items)} for items in (a, b))
    if not (isinstance(a, dict) and isinstance(b, dict)) or (whole_blocks and a.get("type") != b.get("type")):
        return [] if _equal(a, b) else [(key, a, b)]
    prefix = f"{key}." if key else ""
    names = {**a, **b}
    found = (diff_configs(a.get(name, ABSENT), b.get(name, ABSENT), prefix + name, whole_blocks) for name in names)
    return [difference for differences in found for difference in differences]


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


def _evaluate(function: str, name: str, ext_vars: Mapping[str, str] | None, *code: str) -> Any:
    """The value of a jsonnet file or snippet."""
    import _jsonnet

    try:
        variables = _external_variables(ext_vars)
        natives = {"encoder_reads": (("name",), reads)}
        text = getattr(_jsonnet, function)(
            name, *code, ext_vars=variables, jpathdir=str(PRESETS), native_callbacks=natives
        )
    except RuntimeError as error:
        raise ConfigurationError(_jsonnet_message(str(error), name)) from None
    return json.loads(text.translate(_BACK_TO_SURROGATES))


def _evaluate_yaml(path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses duplicate keys, of which yaml would drop the first."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]
            for place, key in enumerate(keys):
                if key.value in (other.value for other in keys[:place]):
                    problem = f"duplicate key {key.value}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
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
    """jsonnet's error in one line, beginning with its place (file:line:column)."""
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
