"""What compiled captions were made of."""

from __future__ import annotations

import pickle
from typing import Any

from torch.nn import Module

from beem_plugin.backbones.inference import is_altered
from beem_plugin.exits.policy import ExitPolicy


class Snapshot:
    """
    The modules, parameters and buffers of a network, with the version that torch counts for each tensor. What was
    compiled for a network serves as long as its snapshot `matches` a new one: other modules, weights that were written
    to or moved, and other exits are noticed. Writes through `.data` are not, as torch does not count them.

    # Parameters

    network : `CaptionNetwork`
    """

    def __init__(self, network: Any) -> None:
        parts = (network.backbone.decoder.language_model, network.exits, network.signal_modules)
        self.modules: list[Module] = [module for part in parts for module in part.modules()]
        self.tensors = [
            tensor
            for module in self.modules
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        ]
        self.exits = (tuple(network.exit_layers), network.shortlist)
        inference = any(tensor.is_inference() for tensor in self.tensors)  # torch counts no versions of these
        self.versions = [] if inference else [(tensor._version, tensor.data_ptr()) for tensor in self.tensors]
        self.is_plain = not inference and not any(one.training or is_altered(one) for one in self.modules)
        """Whether all modules compute what their classes define: no hooks, no replaced `forward`, evaluation mode."""

    def matches(self, other: Snapshot) -> bool:
        """Whether both are of the same modules and tensors, unchanged between them."""
        return (
            len(self.modules) == len(other.modules)
            and len(self.tensors) == len(other.tensors)
            and self.exits == other.exits
            and self.versions == other.versions
            and all(one is another for one, another in zip(self.modules, other.modules))
            and all(one is another for one, another in zip(self.tensors, other.tensors))
        )


def policy_key(policy: ExitPolicy) -> tuple[Any, ...] | None:
    """Equal for policies that decide alike; `None` for a policy that cannot be pickled, and so not be compared."""
    try:
        return type(policy), pickle.dumps(vars(policy))
    except Exception:  # pickle raises whatever an object's own methods raise
        return None
