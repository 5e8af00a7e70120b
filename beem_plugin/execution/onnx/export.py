"""
A multi-exit network and its exit policy as ONNX graphs.

No exporter keeps a decision that depends on a tensor, so that decisions are between graphs: segment e takes the hidden
states of the exit before (the first one tokens) and gives those of its exit, its logits and the signals that the policy
reads; the policy's graph takes these and gives who leaves. `runner.py`, which is written beside them, runs both. Batch
and length are dynamic. Exits where no sample can leave, and whose outputs the policy does not use, have no graphs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.files import write_json
from beem_plugin.execution.onnx.graph import GraphModule, write_graph, write_policy
from beem_plugin.execution.onnx.weights import store_weights
from beem_plugin.execution.precision import DTYPES
from beem_plugin.execution.stepped_network import SteppedNetwork, pad_token_of
from beem_plugin.exits.policy import ExitPolicy, check_signals

META_NAME = "export.json"
FORMAT = 2
FULL_DEPTH_NAME = "full_depth.onnx"
RUNNER = Path(__file__).with_name("runner.py")
CHECKED_SHAPES = ((2, 7), (1, 5), (3, 12), (1, 1))
"""Batch and tokens at which an exported graph is compared with the network; it is traced at the first."""
LONG_INPUT = 100
"""Tokens of one further comparison at least, as far as the network takes so many."""

Refit = Callable[[Path, dict[str, Any]], ExitPolicy]
"""From the folder with the segments of all exits, and `export.json`'s entries, to a policy that is fitted on them."""


class Segment(GraphModule):
    """The layers after exit `first - 1` up to exit `last`, and exit `last`'s head."""

    token_names = ("input_ids", "token_type_ids", "attention_mask", "hidden_states", "hidden_states_out")

    def __init__(self, network: Any, first: int, last: int, token_types: bool, signals: Sequence[str] = ()) -> None:
        super().__init__()
        self.network = network
        self.first, self.last = first, last
        self.signals = list(signals)
        self.token_types = token_types and first == 1
        self.input_names = ["input_ids" if first == 1 else "hidden_states", "attention_mask"]
        self.input_names += ["token_type_ids"] * self.token_types
        self.output_names = ["hidden_states_out", "logits", *self.signals]

    def forward(self, entering: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        state: BackboneState
        mask = attention_mask.bool()  # tokenizers give int64
        if self.first == 1:
            batch = {"input_ids": entering, "attention_mask": mask}
            state = self.network.embed(batch if token_type_ids is None else {**batch, "token_type_ids": token_type_ids})
        else:
            state = self.network.backbone.make_state(entering, mask)
        for exit_number in range(self.first, self.last + 1):
            state = self.network.advance(exit_number, state)
        found = self.network.exit_signals(self.last, state)
        return state.hidden_states, found.logits, *(found.extra[name] for name in self.signals)

    def example(self, batch: int, tokens: int) -> tuple[Tensor, ...]:
        """Made-up inputs; the last sample is padded where there is room."""
        generator = torch.Generator().manual_seed(batch * 100 + tokens)
        mask = torch.ones(batch, tokens, dtype=torch.int64)
        mask[-1, max(1, tokens - 2) :] = batch == 1
        if self.first == 1:
            high = min(1000, self.network.backbone.config.vocab_size)
            entering = torch.randint(3, high, (batch, tokens), generator=generator)
            entering = entering.masked_fill(mask == 0, pad_token_of(self.network))
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
    dtype: str = "float32",
    refit: Refit | None = None,
) -> dict[str, Any]:
    """
    Writes the segments, the policy's graphs, `export.json` (with `meta`'s entries) and `runner.py` into `folder`, and
    compares each graph with what it was made from. The network is in evaluation mode, float32, on the CPU, and the
    policy calibrated; `token_types` says whether the tokenizer makes `token_type_ids`.

    `full_depth` also writes `full_depth.onnx`, one graph with the last exit alone, to compare the speed with. With
    dtype `"int8"` weights of matrix products are in 8 bits, their inputs quantized as they come (dynamic quantization);
    with `"bfloat16"` or `"float16"` weights are stored so, and cast to float32 when a graph is opened.
    `refit` gives the policy that is written in place of `policy`, fitted on the outputs of the written segments.

    Raises a `ConfigurationError` if the policy reads signals that the network does not have, an exit reads outputs of
    earlier exits, onnx is not installed, or a graph and its origin disagree.
    """
    check_choice("dtype", dtype, DTYPES)
    obstacle = getattr(network, "obstacle", None)
    if obstacle is None and getattr(network, "carries_memory", False):
        obstacle = f"exits that read outputs of earlier exits ({', '.join(getattr(network, 'memory_readers', []))})"
    if obstacle is None and getattr(network, "output_per_token", False):
        obstacle = "exits of tags"
    if obstacle is not None:
        raise ConfigurationError(
            f"export: found {obstacle}; allowed: exits that read nothing but their own layer's hidden states"
        )
    policy.bind(network.exit_layers, network.num_labels)
    check_signals(policy, set(network.available_signals), "the model")
    policy.check_calibrated()
    if policy.adapts:
        raise ConfigurationError(
            f"export: found {policy.registered_name}, which adapts while predicting; allowed: fixed thresholds, "
            "such as those of the strategy ucb"
        )
    folder.mkdir(parents=True, exist_ok=True)
    last = network.num_exits
    exits = [n for n in range(1, last) if refit is not None or policy.can_leave(n) or policy.needs(n)] + [last]
    graphs = [f"segment_{number}.onnx" for number in exits]
    for first, number, name in zip([1, *(one + 1 for one in exits)], exits, graphs):
        write_segment(Segment(network, first, number, token_types, policy.required_signals), folder / name, dtype)
    if full_depth:
        write_segment(Segment(network, 1, last, token_types), folder / FULL_DEPTH_NAME, dtype)
    written = {
        "format": FORMAT,
        "exit_layers": list(network.exit_layers),
        "num_labels": network.num_labels,
        "hidden_size": network.backbone.hidden_size,
        "max_tokens": getattr(network.backbone, "max_tokens", None),
        "pad_token_id": pad_token_of(network),
        "token_types": token_types,
        "signals": list(policy.required_signals),
        "dtype": dtype,
        **(meta or {}),
    }
    if refit is not None:
        policy = refit(folder, {**written, "graphs": graphs})
        policy.bind(network.exit_layers, network.num_labels)
    policies, has_score = write_policy(policy, exits, folder)
    steps = zip(exits, graphs, policies, strict=True)
    written["segments"] = [{"exit": number, "graph": graph, "policy": step} for number, graph, step in steps]
    written |= {"has_score": has_score, "exit_policy": policy.to_config()}
    write_json(folder / META_NAME, written)
    shutil.copyfile(RUNNER, folder / RUNNER.name)
    return written


def write_segment(segment: Segment, path: Path, dtype: str) -> None:
    write_graph(segment, path, (*CHECKED_SHAPES, (2, long_input(segment.network.backbone))))
    store_weights(path, dtype)


def long_input(backbone: Any) -> int:
    """So many tokens that attention with a local window does not see all of them, if the backbone takes so many."""
    window = getattr(backbone.config, "sliding_window", None) or 0
    tokens = max(LONG_INPUT, 2 * window + 3)
    most = getattr(backbone, "max_tokens", None)
    return tokens if most is None else min(tokens, most)
