"""What `decoding` bakes into its graphs, until it uses `execution.compiled.origin`."""

from __future__ import annotations

import json
from typing import Any

from beem_plugin.backbones.untouched import version_of
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy


def fingerprint(network: SteppedNetwork, policy: ExitPolicy) -> tuple[Any, ...]:
    """What captured graphs hold beside the structure of the network: where its weights lie, the policy's numbers."""
    numbers = numbers_of(policy)
    # A policy that cannot be written down is its own identity.
    numbers = str(id(policy)) if numbers is None else numbers
    # Written to: some of what is captured are copies.
    weights = [(parameter.data_ptr(), version_of(parameter)) for parameter in network.parameters()]
    return hash(tuple(weights)), numbers


def numbers_of(policy: ExitPolicy) -> str | None:
    """All that the policy decides by; `None` for one that cannot be written down."""
    try:
        return json.dumps(policy.to_config(), sort_keys=True, default=str)
    except TypeError:
        return None
