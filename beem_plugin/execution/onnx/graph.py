"""A module, or the step of an exit policy, as an ONNX graph that is compared with its origin before it is kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, first_line
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState

OPSET = 18
TOLERANCE = 1e-3


class GraphModule(torch.nn.Module):
    """Tensors in, a tuple of tensors out, with the batch first; those in `token_names` have the tokens next."""

    input_names: list[str]
    output_names: list[str]
    token_names: Sequence[str] = ()

    def example(self, batch: int, tokens: int) -> tuple[Tensor, ...]:
        """Made-up inputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define example")


def write_graph(module: GraphModule, path: Path, shapes: Sequence[tuple[int, int]]) -> None:
    """
    Writes `module`, on the CPU, to `path`; batch and length are dynamic. Graph and module are compared at `shapes`,
    batch and tokens, and the graph is traced at the first. Raises a `ConfigurationError` if onnx is not installed, an
    operation has no ONNX form, or graph and module disagree.
    """
    module.eval()
    names = [*module.input_names, *module.output_names]
    axes = {name: {0: "batch", 1: "tokens"} if name in module.token_names else {0: "batch"} for name in names}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # The exporter warns about every branch that it traces; what counts is checked below.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                module.example(*shapes[0]),
                str(path),
                input_names=module.input_names,
                output_names=module.output_names,
                opset_version=OPSET,
                dynamo=False,  # ten times as fast as the other exporter
                dynamic_axes=axes,
            )
    except ImportError as error:
        raise missing_extra(error) from error
    except Exception as error:  # the exporter raises errors of many types
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"export: {path.name} could not be exported: {first_line(error)}") from error
    compare(module, path, shapes)


@torch.no_grad()
def compare(module: GraphModule, path: Path, shapes: Sequence[tuple[int, int]]) -> None:
    """Raises a `ConfigurationError` where an output of the graph differs from the module's."""
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra(error) from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    for batch, tokens in shapes:
        inputs = module.example(batch, tokens)
        given = {name: value.numpy() for name, value in zip(module.input_names, inputs, strict=True) if name in taken}
        for name, wanted, found in zip(module.output_names, module(*inputs), session.run(None, given), strict=True):
            if name in module.token_names:
                continue  # the hidden states of padding may differ
            apart = float((torch.from_numpy(found).double() - wanted.double()).nan_to_num(posinf=0.0).abs().max())
            if not apart <= TOLERANCE * (1 + float(wanted.double().abs().nan_to_num(posinf=0.0).max())):
                raise ConfigurationError(
                    f"export: {path.name} gives {name} {apart:.2g} from the network's at {batch} samples of {tokens} "
                    "tokens"
                )


def missing_extra(error: ImportError) -> ConfigurationError:
    return ConfigurationError(f'export: {error}; install the extra: pip install "beem_plugin[export]"')


SHAPES = ((2, 1), (7, 1))
STATE, NEXT = "state_", "next_"


class TracedSignals(ExitSignals):
    """Signals of any batch size: the exporter cannot make a tensor of a size that is not known."""

    def flags(self, value: bool) -> Tensor:
        return torch.zeros_like(self.logits[:, 0]) + float(value) > 0.5

    def with_logits(self, logits: Tensor) -> ExitSignals:
        return TracedSignals(logits, self.extra)


class PolicyStep(GraphModule):
    """
    One step of a policy, bound and calibrated: `logits`, its further signals and its state in; `exits` (bool), `score`
    (0 for a policy without), `output` and the next state out. `entering` is the state at the exit of two samples; the
    first step makes the state itself.
    """

    def __init__(self, policy: ExitPolicy, exit_number: int, entering: dict[str, Tensor], is_first: bool) -> None:
        super().__init__()
        self.policy, self.exit_number = policy, exit_number
        self.start = {name: value[:1] for name, value in entering.items()} if is_first else {}
        self.entering = {} if is_first else entering
        self.signals = list(policy.required_signals)
        self.input_names = ["logits", *self.signals, *(STATE + name for name in self.entering)]
        self.leaving = {} if exit_number == policy.num_exits else self.next_state(*self.example(2, 1)).tensors
        self.output_names = ["exits", "score", "output", *(NEXT + STATE + name for name in self.leaving)]

    def forward(self, logits: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        signals, exits, state = self._step(logits, rest)
        score = self.policy.score(state)
        output = self.policy.output(self.exit_number, signals, state).double()
        shown = torch.zeros_like(output[:, 0]) if score is None else score.double()
        if self.exit_number == self.policy.num_exits:
            exits = torch.ones_like(shown) > 0
        # Copies, since an output of a graph has one name.
        states = [torch.clone(state[name]) for name in self.leaving]
        return torch.clone(exits), torch.clone(shown), torch.clone(output), *states

    def next_state(self, logits: Tensor, *rest: Tensor) -> ExitState:
        return self._step(logits, rest)[2]

    def _step(self, logits: Tensor, rest: Sequence[Tensor]) -> tuple[ExitSignals, Tensor, ExitState]:
        signals = TracedSignals(logits, dict(zip(self.signals, rest)))
        state = dict(zip(self.entering, rest[len(self.signals) :]))
        for name, row in self.start.items():
            state[name] = row.expand(logits.shape[0], *row.shape[1:])
        return signals, *self.policy.step(self.exit_number, signals, ExitState(**state))

    def example(self, batch: int, tokens: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(batch)
        logits = 3 * torch.randn(batch, self.policy.num_labels, generator=generator)
        signals = [torch.rand(batch, generator=generator) for _ in self.signals]
        states = [value[:1].expand(batch, *value.shape[1:]).clone() for value in self.entering.values()]
        return logits, *signals, *states


@torch.no_grad()
def write_policy(policy: ExitPolicy, exits: Sequence[int], folder: Path) -> tuple[list[str], bool]:
    """Writes `policy_1.onnx`, ... for the steps at `exits`; returns their names, and whether there is a score."""
    state = dict(policy.start(2, policy.num_exits).tensors)
    names: list[str] = []
    for exit_number in exits:
        step = PolicyStep(policy, exit_number, state, is_first=not names)
        names.append(f"policy_{exit_number}.onnx")
        write_graph(step, folder / names[-1], SHAPES)
        found = step.next_state(*step.example(2, 1))
        state = dict(found.tensors)
    return names, policy.score(found) is not None
