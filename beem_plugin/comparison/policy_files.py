"""The traces and policies that a command is given."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError, NotCalibratedError
from beem_plugin.common.params import apply_overrides, evaluate_document, load_config_dict, parse_overrides
from beem_plugin.common.values import describe_value
from beem_plugin.comparison.policy_grid import Setting, expand
from beem_plugin.exits.policy import ExitPolicy


@dataclass
class NamedPolicy:
    """A policy's `name` in tables; `where`, the file and entry that errors name; one setting, or those of its grids."""

    name: str
    where: str
    settings: list[Setting]

    @property
    def is_sweep(self) -> bool:
        return len(self.settings) > 1 or bool(self.settings[0].swept)


def load_policies(policies: Sequence[str], files: Sequence[str], overrides: str) -> list[NamedPolicy]:
    """
    `policies` are names, blocks, or files with one block each, named by the file, with its folder where two files have
    the same name; `files` hold several: `{name: block}`, or a list of blocks, named by their `type`. `overrides` change
    every block.
    """
    found = []
    paths = [policy for policy in policies if not is_block(policy)]
    names = dict(zip(paths, shortest_names(paths), strict=True))
    for policy in policies:
        block = policy_block(policy, overrides)
        with errors_at(policy):
            found.append(NamedPolicy(names.get(policy, policy), policy, expand(block)))
    for path in files:
        for name, block in _blocks(path).items():
            with errors_at(f"{path}: {name}"):
                found.append(NamedPolicy(name, f"{path}: {name}", expand(apply_overrides(block, overrides))))
    if not found:
        raise ConfigurationError("--policy: found no policy, allowed: one --policy FILE or --policies FILE or more")
    return found


def is_block(policy: str) -> bool:
    return policy.lstrip().startswith("{")


def policy_block(policy: str, overrides: str = "") -> dict[str, Any]:
    """A policy's block: given as such, by its registered name, by a file, or as one of `policies.libsonnet`."""
    if is_block(policy):
        return apply_overrides(parse_overrides(policy, where="--policy"), overrides)
    if policy in ExitPolicy.list_available():
        return apply_overrides({"type": policy}, overrides)
    if Path(policy).suffix or Path(policy).exists():
        return load_config_dict(policy, overrides)
    name = json.dumps(policy)
    is_published = f"std.objectHasAll(policies, {name}) && std.isObject(policies[{name}])"
    published = f"{{ [if {is_published} then 'block']: policies[{name}] }}"
    found = parse_overrides(f"local policies = import 'beem/policies.libsonnet'; {published}")
    return apply_overrides(found.get("block", {"type": policy}), overrides)


def trace_paths(traces: Sequence[str], calibrations: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """
    The traces, and for each of them the one it is calibrated on. Without traces the last of `calibrations` is one: an
    option with several values takes the positional argument after it.
    """
    traces, calibrations = list(traces), list(calibrations)
    if not traces and len(calibrations) > 1:
        traces = [calibrations.pop()]
    if not traces:
        raise ConfigurationError("found no trace, allowed: one TRACE.npz or more")
    seen: set[str] = set()
    for path in traces:
        if (real := os.path.realpath(path)) in seen:
            raise ConfigurationError(f"{path}: found twice among the traces, allowed: once (it would count twice)")
        seen.add(real)
    if len(calibrations) in (0, 1):
        return traces, [calibrations[0] if calibrations else None for _ in traces]
    if len(calibrations) != len(traces):
        raise ConfigurationError(
            f"--calibrate-on: found {len(calibrations)} files for {len(traces)} trace(s), allowed: one for all, "
            "or one for each in the same order"
        )
    return traces, list(calibrations)


def shortest_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths, without their suffix, that are all different: `rte-0/dev`, `rte-1/dev`."""
    parts = [Path(path).absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return list(paths)


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Puts the name of a file in front of errors."""
    try:
        yield
    except BeemError as error:
        kinds = (NotCalibratedError, DataError, ConfigurationError, BeemError)
        raise next(kind for kind in kinds if isinstance(error, kind))(f"{where}: {error}") from None


def _blocks(path: str) -> dict[str, dict[str, Any]]:
    """The entries of a file of several policies, by name."""
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
