"""Whether a module can be computed without being called."""

from __future__ import annotations

import torch
from torch import Tensor


class Untouched:
    """
    Remembers what a module consists of.

    # Parameters

    whole : `torch.nn.Module`
    """

    def __init__(self, whole: torch.nn.Module) -> None:
        modules = list(whole.modules())
        self.hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.places = [(module._modules, name, child) for module in modules for name, child in module._modules.items()]

    def __bool__(self) -> bool:
        """False if somebody listens to a module inside, or has put another in its place, which must be called then."""
        if any(self.hooks):
            return False
        return all(modules.get(name) is child for modules, name, child in self.places)


def consists_of(whole: torch.nn.Module, known: list[torch.nn.Module]) -> bool:
    """Whether no module in `whole` that does something is another than those `known`."""
    ids = {id(module) for module in known}
    return all(id(module) in ids for module in whole.modules() if not list(module.children()))


def is_written_down(device_type: str) -> bool:
    """
    Whether the modules must be called whatever they cost: they are being traced or compiled, and say more to those who
    do that; or autocast chooses each operation's precision.
    """
    return torch.jit.is_tracing() or torch.compiler.is_compiling() or torch.is_autocast_enabled(device_type)


def version_of(tensor: Tensor) -> int:
    """Changes when the tensor is written to; 0 for one that torch keeps no count of."""
    return 0 if tensor.is_inference() else tensor._version
