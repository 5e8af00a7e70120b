"""The engine for whole files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.execution.engine import Engine

FILE_ENGINE = {"type": "depth_pools"}
"""The engine for files unless the config or a flag names another: it has the highest throughput."""


def file_engine(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    # Parameters

    config : `Mapping[str, Any]`
        An archive's.

    # Returns

    `dict[str, Any]`, optional
        `FILE_ENGINE`, or `None` if the config names the model's engine.
    """
    model = config.get("model")
    is_given = isinstance(model, Mapping) and model.get("engine") is not None
    return None if is_given else dict(FILE_ENGINE)


def build_file_engine(config: Mapping[str, Any]) -> Engine:
    """A new engine for whole files: that of an archive's config, or `FILE_ENGINE`."""
    block = file_engine(config) or config["model"]["engine"]
    return Engine.from_params({"type": block} if isinstance(block, str) else dict(block))


def check_engine(name: str, flag: str) -> None:
    """Raises a `ConfigurationError` that names `flag` if `name` is not a registered engine."""
    try:
        Engine.from_params({"type": name})
    except ConfigurationError:
        raise ConfigurationError(not_allowed(flag, name, Engine.list_available())) from None
