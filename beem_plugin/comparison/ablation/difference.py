"""What differs between two configs, in one line."""

from __future__ import annotations

import json
from typing import Any

from beem_plugin.common.params import ABSENT, diff_configs
from beem_plugin.comparison.policy_grid import shown_value

Difference = tuple[str, Any, Any]


def differences(base: Any, config: Any, key: str = "") -> list[Difference]:
    """As `diff_configs`; but where the `type` of a block differs, the block as a whole: its keys mean other things."""
    old, new = inside(base), inside(config)
    same = isinstance(base, dict) == isinstance(config, dict)
    if old is None or new is None or not same or old.get("type") != new.get("type"):
        return [(key, base, config)] if diff_configs(base, config) else []
    prefix = f"{key}." if key else ""
    parts = (differences(old.get(name, ABSENT), new.get(name, ABSENT), prefix + name) for name in {**old, **new})
    return [found for part in parts for found in part]


def inside(value: Any) -> dict[str, Any] | None:
    """The items of a block or of a list of blocks, by key."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return {str(number): item for number, item in enumerate(value)}
    return value if isinstance(value, dict) else None


def at(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = (inside(config) or {}).get(part, ABSENT)
    return config


def flat(found: list[Difference]) -> dict[str, Any]:
    """Every changed value by its whole key, blocks taken apart; `None` for what is no longer there."""
    values: dict[str, Any] = {}
    for key, _, new in found:
        if isinstance(new, dict):
            values.update({name: value for name, _, value in diff_configs({}, new, key)})
        else:
            values[key] = None if new is ABSENT else new
    return values


def in_one_line(found: list[Difference], whole_keys: bool = False) -> str:
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


def to_json(found: list[Difference]) -> list[dict[str, Any]]:
    """A list of `{"key", "base", "variant"}`; a side that lacks the key has no entry."""
    rows = []
    for key, old, new in found:
        sides = {"base": old, "variant": new}
        rows.append({"key": key, **{side: value for side, value in sides.items() if value is not ABSENT}})
    return json.loads(json.dumps(rows))
