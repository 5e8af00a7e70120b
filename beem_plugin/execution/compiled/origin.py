"""Whether a compiled network still is what it was made of."""

import pickle
from itertools import chain, repeat
from operator import attrgetter, contains, is_
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from beem_plugin.exits.policy import ExitPolicy

GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
"""Hooks on all modules. torch changes these dictionaries and never replaces them."""


TRAINING, VERSION = attrgetter("training"), attrgetter("_version")


class Origin:
    """
    A network and a policy at one moment. This is the only place that tells whether something derived from them (copied
    weights, captured graphs, generated kernels) is still valid. Writes to `parameter.data` by tensor operations do not
    count as changes, because torch does not count them either; assignments to `parameter.data` do.
    """

    def __init__(self, network: Any, policy: ExitPolicy) -> None:
        self.network, self.policy_type = network, type(policy)
        self.modules: list[torch.nn.Module] = list(network.modules()) if hasattr(network, "modules") else []
        self._dicts = [one.__dict__ for one in self.modules]
        self._hooks = [hooks for one in self.modules for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        tables: list[Any] = [table for one in self.modules for table in (one._modules, one._parameters, one._buffers)]
        self._tables = [table for table in tables if table]
        self._sizes = list(map(len, tables))
        self._all_tables, self._values = tables, self._present_values()
        self._tensors = [value for value in self._values if isinstance(value, Tensor)]
        # torch does not count writes to inference tensors.
        self._counted = [value for value in self._tensors if not value.is_inference()]
        self.network_state = self._network_state()
        self.policy_state = policy_state(policy)

    def matches(self, network: Any, policy: ExitPolicy) -> bool:
        """Whether `network` and `policy` are equal to what they were when this was made."""
        return (
            network is self.network
            and type(policy) is self.policy_type
            and policy_state(policy) == self.policy_state
            and list(map(len, self._all_tables)) == self._sizes
            and all(map(is_, self._present_values(), self._values))
            and self._network_state() == self.network_state
        )

    @property
    def is_intercepted(self) -> bool:
        """Whether a forward hook is registered on a module, or a `forward` replaced: modules must then be called."""
        return any(self._hooks) or any(GLOBAL_HOOKS) or any(map(contains, self._dicts, repeat("forward")))

    def _present_values(self) -> list[Any]:
        """All submodules, parameters and buffers."""
        return list(chain.from_iterable(map(dict.values, self._tables)))

    def _network_state(self) -> tuple[Any, ...]:
        # Evaluated before every run, which may be one sample long. `map` over prepared lists is the fastest in Python.
        own = vars(self.network) if self.modules else {}
        return (
            self.is_intercepted,
            list(map(TRAINING, self.modules)),
            list(map(Tensor.data_ptr, self._tensors)),
            list(map(VERSION, self._counted)),
            {name: value for name, value in own.items() if callable(value)},
        )


def policy_state(policy: ExitPolicy) -> Any:
    """The attributes of a policy in a comparable form."""
    try:
        return pickle.dumps(vars(policy))
    except Exception:  # a user's policy may hold functions, locks and others
        return repr(vars(policy))
