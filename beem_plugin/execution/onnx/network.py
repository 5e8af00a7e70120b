"""An exported network on onnxruntime, under the same policies and engines as the network it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.execution.onnx.export import FULL_DEPTH_NAME, META_NAME
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals

INPUTS = ("input_ids", "token_type_ids")


class OnnxNetwork:
    """
    The segments of a folder that `allennlp export` wrote. Give it to any engine in place of the encoder:

        network = OnnxNetwork(folder)
        for executed in Engine.by_name("single")().run(network, network.exit_policy, batches): ...

    # Parameters

    folder : `str | Path`
    threads : `int`, optional (default = torch's)
        For one layer's work.
    full_depth : `bool`, optional (default = `False`)
        Run `full_depth.onnx`, a single graph with the last exit alone, instead of the segments.
    """

    def __init__(self, folder: str | Path, threads: int | None = None, full_depth: bool = False) -> None:
        folder = Path(folder)
        try:
            self.meta: dict[str, Any] = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(
                f"{folder}: found no {META_NAME}, allowed: a folder that `allennlp export` wrote"
            ) from error
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigurationError(f'{error}; install the extra: pip install "beem_plugin[export]"') from error
        names = [FULL_DEPTH_NAME] if full_depth else self.meta["segments"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        # Every session has threads of its own: those of the segment before must not spin while the next one runs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.sessions = [
            onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in names
        ]
        self.exit_layers: list[int] = self.meta["exit_layers"][-1:] if full_depth else self.meta["exit_layers"]
        self.num_labels: int = self.meta["num_labels"]
        self.exit_policy = ExitPolicy.from_params(dict(self.meta["exit_policy"]))
        self.backbone = OnnxBackbone(self.meta)

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def available_signals(self) -> set[str]:
        return set()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """An empty parameter on the CPU, from which engines take the device."""
        yield torch.nn.Parameter(torch.zeros(0))

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        """The tokens themselves; embedding them is part of the first segment."""
        inputs = {name: whole_numbers(name, batch[name]) for name in INPUTS if name in batch}
        tokens = inputs["input_ids"]
        most = self.backbone.max_tokens
        if most is not None and tokens.shape[1] > most:
            raise ConfigurationError(
                f"tokenizer.max_length: an input has {tokens.shape[1]} tokens, the graphs take at most {most}"
            )
        mask = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones_like(tokens).bool()
        if self.meta["token_types"] and "token_type_ids" not in inputs:
            inputs["token_type_ids"] = torch.zeros_like(tokens)
        return BackboneState(tokens[..., None], mask, inputs, {}, {name: (1,) for name in inputs})

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        given = {"attention_mask": state.attention_mask.numpy()}
        if exit_number == 1:
            names = INPUTS if self.meta["token_types"] else INPUTS[:1]
            given.update({name: state.batched[name].numpy() for name in names})
        else:
            given["hidden_states"] = state.hidden_states.numpy()
        hidden, logits = self.sessions[exit_number - 1].run(None, given)
        return BackboneState(torch.from_numpy(hidden), state.attention_mask, {"logits": torch.from_numpy(logits)})

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        return ExitSignals(state.batched["logits"])


def whole_numbers(name: str, tokens: Tensor) -> Tensor:
    """`tokens` as int64, which the graphs take."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise DataError(f"{name}: found {str(tokens.dtype).removeprefix('torch.')}, allowed: whole numbers")
    return tokens.long()


class OnnxBackbone:
    """What the engines ask of a backbone."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self.config = SimpleNamespace(pad_token_id=meta["pad_token_id"])
        self.hidden_size = meta["hidden_size"]
        self.max_tokens = meta["max_tokens"]
        self.token_dims: dict[str, tuple[int, ...]] = {}

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        mask = torch.ones(hidden_states.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask
        return BackboneState(hidden_states, mask)
