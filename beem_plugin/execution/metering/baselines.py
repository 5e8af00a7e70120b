"""The same network and policy with parts of early exiting switched off, to measure what each part costs."""

from typing import Any

from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policies.wrapped import WrappedPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


class NetworkView:
    """A network of which a subclass changes a part; everything else is the network's."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __getattr__(self, name: str) -> Any:
        if name == "network":  # not set yet, as in copies
            raise AttributeError(name)
        return getattr(self.network, name)


class FullDepth(NetworkView):
    """A network with its last exit alone: under `final`, any engine runs it at full depth, exits off."""

    num_exits = 1

    def __init__(self, network: SteppedNetwork) -> None:
        super().__init__(network)
        self.exit_layers = [network.exit_layers[-1]]
        self.available_signals: set[str] = set()

    @property
    def exits(self) -> list[Any]:
        return [self.network.exits[-1]]

    def advance(self, exit_number: int, state: BackboneState, backbone: Any = None) -> BackboneState:
        options = {} if backbone is None else {"backbone": backbone}
        for number in range(1, self.network.num_exits + 1):
            state = self.network.advance(number, state, **options)
        return state

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        return self.network.exit_signals(self.network.num_exits, state)


class NeverExits(WrappedPolicy):
    """Steps another policy at every exit, and no sample exits: the cost of unused exits."""

    def __init__(self, policy: ExitPolicy) -> None:
        super().__init__(policy)
        self.serves_regression = policy.serves_regression  # type: ignore[misc]

    def to_config(self) -> dict[str, Any]:
        """For reports; it cannot be built from a config."""
        return {"never leaves": self.policy.to_config()}

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        _, state = self.policy.step(exit_number, signals, state)
        return signals.flags(False), state

    def observe(self, exits: Tensor, output: Tensor) -> None:
        """Full depth says nothing about thresholds: the policy does not learn from it."""
