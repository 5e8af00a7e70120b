"""Whether a module can be computed without being called."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
"""Those of all modules; torch changes these dictionaries and never replaces them."""


class Untouched:
    """
    Remembers what a module consists of.

    # Parameters

    whole : `torch.nn.Module`
    """

    def __init__(self, whole: torch.nn.Module) -> None:
        self.modules = modules = list(whole.modules())
        self.hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.places = [(module._modules, name, child) for module in modules for name, child in module._modules.items()]

    def __bool__(self) -> bool:
        """
        False if somebody listens to a module inside, has put another in its place or has given it another `forward`: it
        must be called then.
        """
        if any(self.hooks) or any(GLOBAL_HOOKS):
            return False
        # Asked before every block: plain loops take half as long as generators.
        for module in self.modules:
            if "forward" in module.__dict__:
                return False
        for modules, name, child in self.places:  # noqa: SIM110
            if modules.get(name) is not child:
                return False
        return True


def is_touched(module: torch.nn.Module) -> bool:
    """Whether somebody listens to this module, or to all, or has given it another `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or any(GLOBAL_HOOKS) or "forward" in module.__dict__)


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
