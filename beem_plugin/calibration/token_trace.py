"""The outputs of all exits for the tokens of a set of captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.trace import ExitTrace, rows_of
from beem_plugin.calibration.trace_file import (
    check_exits,
    check_layers,
    meta_of,
    require_arrays,
    signals_of,
    write_arrays,
)
from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, not_allowed
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.token_signals import SUMMARIES, TokenSignals, TokenSummary

CALIBRATION_TARGETS = ("reference", "last_exit")
TOKEN_FIELDS = ("target", "caption", "position")
FIELDS = (*SUMMARIES, *TOKEN_FIELDS)
IDS = ("top_token", *TOKEN_FIELDS)  # the integer fields


class TokenTrace(ExitTrace):
    """
    A trace whose samples are tokens: for each exit the most probable token, its probability, the margin and the
    entropy, `(tokens, exits)`, instead of logits over the vocabulary of `num_words`. Policies are calibrated and
    replayed on it as on any trace, except those that need the probabilities of all labels.

    Of each token `target` is the reference's (-1 if unknown), `caption` the caption, and `position` its position in it,
    both from 0. `signals` are further ones, `(tokens, exits)`: `similarity` and those of the model's heads; `position`
    is always among them, for policies whose thresholds decrease along the caption. `meta` is that of `ExitTrace`, and
    `calibration_target`: the correct token, `"reference"` (the default) or `"last_exit"`.
    """

    def __init__(
        self,
        top_token: Tensor,
        top_probability: Tensor,
        entropy: Tensor,
        margin: Tensor,
        target: Tensor,
        caption: Tensor,
        position: Tensor,
        num_words: int,
        signals: Mapping[str, Tensor] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.top_token = top_token.to(torch.int64)
        self.top_probability = top_probability.float()
        self.entropy = entropy.float()
        self.margin = margin.float()
        self.target = target.to(torch.int64)
        self.caption = caption.to(torch.int64)
        self.position = position.to(torch.int64)
        self.num_words = num_words
        self.ids = None
        self.meta = dict(meta or {})
        given = {name: value.float() for name, value in (signals or {}).items() if name != "position"}
        position_of_exits = self.position.float().unsqueeze(1).expand(-1, self.top_token.shape[1])
        self.signals = {**given, "position": position_of_exits}
        check_token_trace(self)

    @classmethod
    def of_summaries(
        cls,
        summaries: Sequence[Sequence[Any]],
        targets: Sequence[Tensor],
        indices: Sequence[Tensor],
        num_words: int,
        meta: Mapping[str, Any],
    ) -> TokenTrace:
        """Of samples that are no tokens of captions: each batch's summaries by exit, targets, positions, on the CPU."""
        order = torch.cat(list(indices)).argsort()
        columns: dict[str, Any] = {
            name: torch.cat([torch.stack([getattr(one, name) for one in exits], 1) for exits in summaries])[order]
            for name in SUMMARIES
        }
        index = torch.arange(len(order))
        return cls(
            **columns,
            target=torch.cat(list(targets))[order],
            caption=index,
            position=0 * index,
            num_words=num_words,
            meta={**meta, "numbers_exits": True},
        )

    @property
    def has_independent_samples(self) -> bool:  # type: ignore[override]  # tokens of one caption depend on each other
        return len(self.caption.unique()) == len(self)

    @property
    def has_logits(self) -> bool:
        return False

    @property
    def logits(self) -> Tensor:  # type: ignore[override]
        raise ConfigurationError(
            "a trace of captions or tags has no logits; allowed: policies that read the most probable token, its "
            "probability, the margin or the entropy"
        )

    @property
    def calibration_target(self) -> str:
        return str(self.meta.get("calibration_target") or "reference")

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        """`(tokens,)` the correct token."""
        return self.target if self.calibration_target == "reference" else self.top_token[:, -1]

    def judged_by(self, calibration_target: str) -> TokenTrace:
        """The same trace with another `calibration_target`: `"reference"` or `"last_exit"`."""
        check_choice("calibration_target", calibration_target, CALIBRATION_TARGETS)
        return self._with(slice(None), {**self.meta, "calibration_target": calibration_target})

    def __len__(self) -> int:
        return self.top_token.shape[0]

    @property
    def num_exits(self) -> int:
        return self.top_token.shape[1]

    @property
    def num_labels(self) -> int:
        return self.num_words

    @property
    def predictions(self) -> Tensor:
        return self.top_token

    def same_data(self, other: ExitTrace) -> bool:
        return isinstance(other, TokenTrace) and all(
            torch.equal(getattr(self, name), getattr(other, name)) for name in SUMMARIES
        )

    def exit_signals(self, exit_number: int) -> ExitSignals:
        column = exit_number - 1
        summary = TokenSummary(*(getattr(self, name)[:, column] for name in SUMMARIES))
        extra = {name: (lambda value=value: value[:, column]) for name, value in self.signals.items()}
        return TokenSignals(len(self), self.top_token.device, summary=lambda: summary, extra=extra)

    def select(self, index: Tensor | Sequence[int]) -> TokenTrace:
        return self._with(rows_of(index), self.meta)

    def _with(self, rows: Tensor | slice, meta: Mapping[str, Any]) -> TokenTrace:
        return TokenTrace(
            **{name: getattr(self, name)[rows] for name in FIELDS},
            num_words=self.num_words,
            signals={name: value[rows] for name, value in self.signals.items()},
            meta=meta,
        )

    def save(self, path: str | Path) -> None:
        arrays = {name: getattr(self, name).numpy() for name in FIELDS}
        # Token ids fit into 32 bits: half the size before compression.
        arrays.update({name: arrays[name].astype(np.int32) for name in IDS})
        for name, value in self.signals.items():
            if name != "position":
                arrays[name if name == "similarity" else f"signal_{name}"] = value.numpy()
        write_arrays(path, arrays, {**self.meta, "num_words": self.num_words})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TokenTrace:
        require_arrays(arrays, {*FIELDS, "meta"})
        meta = meta_of(arrays)
        try:
            num_words = int(meta.pop("num_words"))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"meta is no JSON object with `num_words`: {error}") from None
        signals = signals_of(arrays)
        if "similarity" in arrays:
            signals["similarity"] = torch.from_numpy(arrays["similarity"].astype(np.float32))
        parts = {name: torch.from_numpy(arrays[name]) for name in FIELDS}
        return cls(**parts, num_words=num_words, signals=signals, meta=meta)


ExitTrace.kinds["top_token"] = TokenTrace


def check_token_trace(trace: TokenTrace) -> None:
    """Raises a `DataError` if the parts of `trace` do not fit together or are not finite."""
    if trace.top_token.ndim != 2 or trace.top_token.shape[1] < 1:
        raise DataError(f"trace: top_token must be (tokens, exits), found shape {tuple(trace.top_token.shape)}")
    tokens, exits = trace.top_token.shape
    check_exits({name: getattr(trace, name) for name in SUMMARIES} | dict(trace.signals), tokens, exits)
    for name in TOKEN_FIELDS:
        if getattr(trace, name).shape != (tokens,):
            raise DataError(f"trace: {tokens} tokens, but {name} has shape {tuple(getattr(trace, name).shape)}")
    for name in ("top_token", "target"):
        value = getattr(trace, name)
        if tokens and (int(value.max()) >= trace.num_words or int(value.min()) < -1):
            raise DataError(f"trace: {name} has a token outside the vocabulary of {trace.num_words}")
    if trace.calibration_target not in CALIBRATION_TARGETS:
        reason = not_allowed("meta.calibration_target", trace.calibration_target, CALIBRATION_TARGETS)
        raise DataError(f"trace: {reason}")
    check_layers(trace.meta, exits)
