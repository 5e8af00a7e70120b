"""A module as an ONNX graph, compared with the module before it is kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, first_line

OPSET = 18
TOLERANCE = 1e-3


class GraphModule(torch.nn.Module):
    """
    What is exported: tensors in, a tuple of tensors out; the first dimension of all is the batch. The second dimension
    of the inputs and outputs in `token_names` is dynamic, too.
    """

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
