"""
A multi-exit network as ONNX graphs, one for each segment between two exits.

No exporter keeps a decision that depends on a tensor, so the decision stays outside: segment e takes the hidden states
of exit e - 1 (the first one tokens) and gives those of exit e and its logits. `onnx_network.py` runs the segments under
the same policies and engines as the network itself. Batch and length are dynamic.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.execution.stepped_network import SteppedNetwork, pad_token_of
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)

META_NAME = "export.json"
FULL_DEPTH_NAME = "full_depth.onnx"
OPSET = 18
CHECKED_SHAPES = ((2, 7), (1, 5), (3, 12), (1, 1))
"""Batch and tokens at which an exported graph is compared with the network; it is traced at the first."""
LONG_INPUT = 100
"""Tokens of one further comparison at least, as far as the network takes so many."""
TOLERANCE = 1e-3


class Segment(torch.nn.Module):
    """The layers from exit `first - 1` to exit `last`, and exit `last`'s head."""

    def __init__(self, network: Any, first: int, last: int, token_types: bool) -> None:
        super().__init__()
        self.network = network
        self.first, self.last = first, last
        self.token_types = token_types and first == 1

    @property
    def input_names(self) -> list[str]:
        names = ["input_ids" if self.first == 1 else "hidden_states", "attention_mask"]
        return [*names, "token_type_ids"] if self.token_types else names

    def forward(self, entering: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        state: BackboneState
        if self.first == 1:
            batch = {"input_ids": entering, "attention_mask": attention_mask}
            state = self.network.embed(batch if token_type_ids is None else {**batch, "token_type_ids": token_type_ids})
        else:
            state = self.network.backbone.make_state(entering, attention_mask)
        for exit_number in range(self.first, self.last + 1):
            state = self.network.advance(exit_number, state)
        return state.hidden_states, self.network.exit_signals(self.last, state).logits

    def example(self, batch: int, tokens: int) -> tuple[Tensor, ...]:
        """Made-up inputs; the last sample is padded where there is room."""
        generator = torch.Generator().manual_seed(batch * 100 + tokens)
        mask = torch.ones(batch, tokens, dtype=torch.bool)
        mask[-1, max(1, tokens - 2) :] = batch == 1
        if self.first == 1:
            high = min(1000, self.network.backbone.config.vocab_size)
            entering = torch.randint(3, high, (batch, tokens), generator=generator)
            entering = entering.masked_fill(~mask, pad_token_of(self.network))
        else:
            entering = torch.randn(batch, tokens, self.network.backbone.hidden_size, generator=generator)
        return (entering, mask, torch.zeros_like(entering)) if self.token_types else (entering, mask)


def export_network(
    network: SteppedNetwork,
    policy: ExitPolicy,
    folder: Path,
    token_types: bool = False,
    full_depth: bool = False,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Writes `segment_1.onnx`, ... and `export.json` into `folder`, and compares each graph with the network.

    # Parameters

    network : `SteppedNetwork`
        In evaluation mode, float32, on the CPU.
    policy : `ExitPolicy`
        Calibrated; it is written down with its numbers.
    folder : `Path`
    token_types : `bool`, optional (default = `False`)
        Whether the tokenizer makes `token_type_ids`.
    full_depth : `bool`, optional (default = `False`)
        Also write `full_depth.onnx`, one graph with the last exit alone, to compare the speed with.
    meta : `dict[str, Any]`, optional
        Further entries of `export.json`.

    # Raises

    `ConfigurationError`
        If the policy reads more than logits, an exit reads outputs of earlier exits, onnx is not installed, or a graph
        and the network disagree.
    """
    if policy.required_signals:
        raise ConfigurationError(
            f"exit_policy: found {type(policy).__name__}, which reads {list(policy.required_signals)}; allowed in an "
            "export: policies that read logits alone"
        )
    obstacle = getattr(network, "obstacle", None)
    if obstacle is None and getattr(network, "carries_memory", False):
        obstacle = f"exits that read outputs of earlier exits ({', '.join(getattr(network, 'memory_readers', []))})"
    if obstacle is not None:
        raise ConfigurationError(
            f"export: found {obstacle}; allowed: exits that read nothing but their own layer's hidden states"
        )
    policy.bind(network.exit_layers, network.num_labels)
    policy.check_calibrated()
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for exit_number in range(1, network.num_exits + 1):
        names.append(f"segment_{exit_number}.onnx")
        _export(Segment(network, exit_number, exit_number, token_types), folder / names[-1])
    if full_depth:
        _export(Segment(network, 1, network.num_exits, token_types), folder / FULL_DEPTH_NAME)
    written = {
        "format": 1,
        "segments": names,
        "exit_layers": list(network.exit_layers),
        "num_labels": network.num_labels,
        "hidden_size": network.backbone.hidden_size,
        "max_tokens": getattr(network.backbone, "max_tokens", None),
        "pad_token_id": pad_token_of(network),
        "token_types": token_types,
        "exit_policy": policy.to_config(),
        **(meta or {}),
    }
    write_json(folder / META_NAME, written)
    return written


def _export(segment: Segment, path: Path) -> None:
    segment.eval()
    names, outputs = segment.input_names, ["hidden_states_out", "logits"]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, outputs[0]]}
    with torch.no_grad(), warnings.catch_warnings():
        # The exporters warn about themselves; what counts is checked below.
        warnings.simplefilter("ignore")
        for dynamo in (False, True):  # the tracing exporter is ten times as fast, and one day it will be gone
            options: dict[str, Any] = {"dynamic_axes": {**axes, "logits": {0: "batch"}}}
            if dynamo:
                shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
                options = {"dynamic_shapes": tuple(shape for _ in names), "verbose": False, "external_data": False}
            try:
                torch.onnx.export(
                    segment,
                    segment.example(*CHECKED_SHAPES[0]),
                    str(path),
                    input_names=names,
                    output_names=outputs,
                    opset_version=OPSET,
                    dynamo=dynamo,
                    **options,
                )
                _compare(segment, path, (*CHECKED_SHAPES, (2, long_input(segment.network.backbone))))
                return
            except ImportError as error:
                raise ConfigurationError(
                    f'export: {error}; install the extra: pip install "beem_plugin[export]"'
                ) from error
            except Exception as error:
                path.unlink(missing_ok=True)
                if dynamo:
                    raise ConfigurationError(
                        f"export: {path.name} could not be exported: {first_line(error)}"
                    ) from error
                logger.info("%s: the tracing exporter failed, trying the other one: %s", path.name, first_line(error))


def long_input(backbone: Any) -> int:
    """So many tokens that attention with a local window does not see all of them, if the backbone takes so many."""
    window = getattr(backbone.config, "sliding_window", None) or 0
    tokens = max(LONG_INPUT, 2 * window + 3)
    most = getattr(backbone, "max_tokens", None)
    return tokens if most is None else min(tokens, most)


def first_line(error: Exception) -> str:
    """The first line of an exporter's error, without its report."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _compare(segment: Segment, path: Path, shapes: Sequence[tuple[int, int]]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch, tokens in shapes:
        inputs = segment.example(batch, tokens)
        expected = segment(*inputs)[1]
        given = {name: value.numpy() for name, value in zip(segment.input_names, inputs, strict=True)}
        found = torch.from_numpy(session.run(["logits"], given)[0])
        apart = float((found - expected).abs().max())
        if not apart <= TOLERANCE * (1 + float(expected.abs().max())):
            raise ConfigurationError(
                f"export: {path.name} gives logits {apart:.2g} from the network's at {batch} samples of {tokens} tokens"
            )
