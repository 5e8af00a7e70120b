"""What every exit said about every sample: the network is run once, many rules are judged on its trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.known_labels import known_labels
from beem_plugin.calibration.token_depth import TokenDepth
from beem_plugin.common.errors import DataError
from beem_plugin.exits.signals import ExitSignals, decision_dtype, prediction_of


@dataclass
class ExitTrace:
    """
    The logits of all exits for a set of samples.

    # Parameters

    logits : `Tensor`
        `(samples, exits, labels)` float32, finite. One label an exit means a regression: its values.
    labels : `Tensor`
        `(samples,)` int64, -1 where unknown; of a regression float32, NaN where unknown.
    ids : `list[str]`, optional (default = `None`)
        The samples' own identifiers.
    signals : `Mapping[str, Tensor]`, optional (default = `{}`)
        Further signals by name, each `(samples, exits)` float32.
    meta : `Mapping[str, Any]`, optional (default = `{}`)
        Anything JSON can hold. Used here: `exit_layers` (the block that each exit reads, default 1..exits; the last is
        the network's depth), `label_names`, `metric`, `source` (which data the trace is of).
    token_depth : `TokenDepth`, optional (default = `None`)
        How deep the tokens of each sample went, of a network whose tokens leave one by one.
    """

    logits: Tensor
    labels: Tensor
    ids: list[str] | None = None
    signals: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    token_depth: TokenDepth | None = None

    has_independent_samples: ClassVar[bool] = True
    """Whether intervals may take the samples as independent draws."""

    def __post_init__(self) -> None:
        # Logits that were transformed in float64 keep their precision; a file always holds float32.
        if self.logits.dtype != torch.float64:
            self.logits = self.logits.to(torch.float32)
        self.labels = as_labels(self.labels, "trace", self.logits.shape[-1:] == (1,))
        check_trace(self, "trace")

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def num_exits(self) -> int:
        return self.logits.shape[1]

    @property
    def num_labels(self) -> int:
        return self.logits.shape[2]

    @property
    def exit_layers(self) -> list[int]:
        """The block that each exit reads, 1-based; the last entry is the depth of the network."""
        return list(self.meta.get("exit_layers") or range(1, self.num_exits + 1))

    @property
    def metric(self) -> str:
        """The task's metric, a name of `beem_plugin.common.metrics`."""
        return str(self.meta.get("metric") or ("pearson_spearman" if self.is_regression else "accuracy"))

    @property
    def is_regression(self) -> bool:
        """Whether an exit gives one value, and labels are values."""
        return self.num_labels == 1

    @property
    def known(self) -> Tensor:
        """`(samples,)` bool: whose label is known."""
        return known_labels(self.labels)

    @property
    def has_labels(self) -> bool:
        return len(self) > 0 and bool(self.known.all())

    @property
    def has_logits(self) -> bool:
        """Whether the trace keeps the logits of all labels, not summaries of them."""
        return True

    @property
    def predictions(self) -> Tensor:
        """`(samples, exits)` int64: the label that each exit gives; of a regression float64, its value."""
        return prediction_of(self.logits.to(decision_dtype(self.logits.device)) if self.is_regression else self.logits)

    def same_data(self, other: ExitTrace) -> bool:
        """Whether both hold the very same numbers."""
        return self.logits.shape == other.logits.shape and bool((self.logits == other.logits).all())

    def exit_signals(self, exit_number: int) -> ExitSignals:
        """What exit `exit_number` (1-based) said about all samples."""
        column = exit_number - 1
        return ExitSignals(self.logits[:, column], {name: value[:, column] for name, value in self.signals.items()})

    def select(self, index: Tensor | Sequence[int]) -> ExitTrace:
        """The trace of the samples at `index`, in that order, or of those where a bool `index` is true."""
        rows = torch.as_tensor(index)
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows.to(torch.int64)
        return ExitTrace(
            logits=self.logits[rows],
            labels=self.labels[rows],
            ids=None if self.ids is None else [self.ids[row] for row in rows.tolist()],
            signals={name: value[rows] for name, value in self.signals.items()},
            meta=self.meta,
            token_depth=None if self.token_depth is None else self.token_depth.select(rows),
        )

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file without pickled objects, under a temporary name first."""
        from beem_plugin.common.files import atomic_write

        arrays: dict[str, np.ndarray] = {
            "logits": self.logits.numpy().astype(np.float32, copy=False),
            "labels": self.labels.numpy(),
            "meta": np.array(json.dumps(dict(self.meta))),
        }
        if self.ids is not None:
            arrays["ids"] = np.array([str(name) for name in self.ids], dtype=np.str_)
        for name, value in self.signals.items():
            arrays[f"signal_{name}"] = value.numpy().astype(np.float32, copy=False)
        if self.token_depth is not None:
            arrays.update(self.token_depth.to_arrays())
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no object arrays, so nothing is pickled

    @classmethod
    def load(cls, path: str | Path) -> ExitTrace:
        """
        Reads a trace file.

        # Raises

        `DataError`
            If the file is missing, is no `.npz`, lacks `logits` or `labels`, holds NaN or infinite logits, or its
            arrays do not fit together.
        """
        try:
            with open(path, "rb") as file:
                return cls._read(file, path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such trace file; write one with `allennlp trace`") from None
        except (IsADirectoryError, PermissionError) as error:
            raise DataError(f"{path}: not a readable trace file: {error.strerror}") from None

    @classmethod
    def _read(cls, file: BinaryIO, path: str | Path) -> ExitTrace:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (ValueError, OSError, EOFError) as error:
            reason = "it is no .npz, or holds pickled objects" if isinstance(error, ValueError) else error
            raise DataError(f"{path}: not a trace file: {reason}") from None
        except Exception as error:  # zipfile.BadZipFile and zlib.error share no narrower base class
            raise DataError(f"{path}: damaged trace file: {error}") from None
        if "top_token" in arrays:
            from beem_plugin.calibration.token_trace import TokenTrace  # which is a kind of this class

            return TokenTrace.from_arrays(arrays, path)
        missing = {"logits", "labels"} - set(arrays)
        if missing:
            raise DataError(f"{path}: lacks {sorted(missing)}; found {sorted(arrays)}")
        is_regression = arrays["logits"].shape[-1:] == (1,)
        kinds = ("f", "floating (one logit: a regression)") if is_regression else ("iu", "integer")
        if arrays["logits"].dtype.kind != "f" or arrays["labels"].dtype.kind not in kinds[0]:
            raise DataError(
                f"{path}: logits must be floating and labels {kinds[1]}, found {arrays['logits'].dtype} "
                f"and {arrays['labels'].dtype}"
            )
        try:
            meta = json.loads(str(arrays["meta"])) if "meta" in arrays else {}
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: meta is not JSON: {error}") from None
        if not isinstance(meta, dict):
            raise DataError(f"{path}: meta is a JSON {type(meta).__name__}, allowed: an object")
        trace = object.__new__(cls)
        with np.errstate(over="ignore"):  # what overflows is refused below
            trace.logits = torch.from_numpy(arrays["logits"].astype(np.float32))
        trace.labels = torch.from_numpy(arrays["labels"].astype(np.float32 if is_regression else np.int64))
        trace.ids = [str(name) for name in arrays["ids"]] if "ids" in arrays else None
        trace.signals = {
            name.removeprefix("signal_"): torch.from_numpy(value.astype(np.float32))
            for name, value in arrays.items()
            if name.startswith("signal_")
        }
        trace.meta = meta
        trace.token_depth = TokenDepth.from_arrays(arrays, len(trace.labels), str(path))
        check_trace(trace, str(path))
        return trace


def check_trace(trace: ExitTrace, where: str) -> None:
    """Raises a `DataError` that starts with `where` if the parts of `trace` do not fit together or are not finite."""
    logits, labels = trace.logits, trace.labels
    if logits.ndim != 3:
        raise DataError(f"{where}: logits must be (samples, exits, labels), found shape {tuple(logits.shape)}")
    samples, exits, num_labels = logits.shape
    if exits < 1:
        raise DataError(f"{where}: logits have no exit, found shape {tuple(logits.shape)}")
    if num_labels < 1:
        raise DataError(f"{where}: no logit an exit, found shape {tuple(logits.shape)}")
    if labels.shape != (samples,):
        raise DataError(f"{where}: {samples} samples in logits, but labels have shape {tuple(labels.shape)}")
    if trace.ids is not None and len(trace.ids) != samples:
        raise DataError(f"{where}: {samples} samples in logits, but {len(trace.ids)} ids")
    if labels.is_floating_point():
        if bool(labels.isinf().any()):
            raise DataError(f"{where}: sample {int(labels.isinf().nonzero()[0])} has an infinite label")
    elif samples and (int(labels.max()) >= num_labels or int(labels.min()) < -1):
        row = int(((labels >= num_labels) | (labels < -1)).nonzero()[0])
        raise DataError(
            f"{where}: sample {row} has label {int(labels[row])}, allowed: -1 (unknown) to {num_labels - 1}"
        )
    _check_finite(logits, "logits", where)
    for name, value in trace.signals.items():
        if value.shape != (samples, exits):
            raise DataError(f"{where}: signal {name!r} has shape {tuple(value.shape)}, allowed: {(samples, exits)}")
        _check_finite(value, f"signal {name!r}", where)
    if trace.token_depth is not None:
        trace.token_depth.check(samples, where)
    layers = trace.meta.get("exit_layers")
    if layers is not None and not _are_layers(layers, exits):
        raise DataError(f"{where}: meta.exit_layers must be {exits} rising layer numbers from 1, found {layers}")


def as_labels(labels: Tensor, where: str, is_regression: bool = False) -> Tensor:
    """
    Whole numbers of any type as int64, of a regression floating ones as float32; anything else is a `DataError`, since
    -1 and NaN, the unknown labels, would be taken for something else.
    """
    if is_regression:
        if not labels.dtype.is_floating_point:
            raise DataError(f"{where}: labels of a regression (one logit) must be floating, found {labels.dtype}")
        return labels.to(torch.float32)
    if labels.dtype.is_floating_point or labels.dtype == torch.bool:
        raise DataError(f"{where}: labels must be integers, found {labels.dtype}")
    return labels.to(torch.int64)


def _are_layers(layers: Any, exits: int) -> bool:
    if not isinstance(layers, list | tuple) or len(layers) != exits:
        return False
    if any(isinstance(layer, bool) or not isinstance(layer, int) for layer in layers):
        return False
    return list(layers) == sorted(set(layers)) and layers[0] >= 1


def _check_finite(values: Tensor, what: str, where: str) -> None:
    if not bool(torch.isfinite(values).all()):
        sample, exit_number = (~torch.isfinite(values)).nonzero()[0, :2].tolist()
        found = values[sample, exit_number].tolist()
        raise DataError(f"{where}: {what} of sample {sample} at exit {exit_number + 1} are not finite: {found}")
