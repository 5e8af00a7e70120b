"""The outputs of all exits for a set of samples. The network runs once; any number of policies use its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.confidence import expected_calibration_error
from beem_plugin.calibration.report import report_on
from beem_plugin.calibration.speed import TokenDepth, depth_summary, histogram_summary
from beem_plugin.calibration.trace_file import (
    as_labels,
    check_exits,
    check_layers,
    check_samples,
    meta_of,
    read_arrays,
    require_arrays,
    signals_of,
    write_arrays,
)
from beem_plugin.common.errors import DataError
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import full_depth_cost
from beem_plugin.exits.signals import ExitSignals, decision_dtype, prediction_of


@dataclass(repr=False)
class ExitTrace:
    """
    The logits of all exits for a set of samples.

    # Parameters

    logits : `Tensor`
        `(samples, exits, labels)` float32, finite. A single label means a regression: its values.
    labels : `Tensor`
        `(samples,)` int64, -1 where unknown; of a regression float32, NaN where unknown.
    ids : `list[str]`, optional (default = `None`)
        Identifiers of the samples.
    signals : `Mapping[str, Tensor]`, optional (default = `{}`)
        Further signals by name, each `(samples, exits)` float32.
    meta : `Mapping[str, Any]`, optional (default = `{}`)
        Anything JSON can hold. Used here: `exit_layers` (the block that each exit reads, default 1..exits; the last is
        the network's depth), `exit_costs` (of a network with branches), `label_names`, `metric`, `source` (name of the
        data).
    token_depth : `TokenDepth`, optional (default = `None`)
        The depth of the tokens of each sample, if the network's tokens exit one by one.
    """

    logits: Tensor
    labels: Tensor
    ids: list[str] | None = None
    signals: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    token_depth: TokenDepth | None = None

    kinds: ClassVar[dict[str, type[ExitTrace]]] = {}  # subclasses by an array that only their files contain

    has_independent_samples: ClassVar[bool] = True  # whether intervals may take the samples as independent draws

    def __post_init__(self) -> None:
        # Logits that were transformed in float64 keep their precision; files hold float32.
        if self.logits.dtype != torch.float64:
            self.logits = self.logits.to(torch.float32)
        self.labels = as_labels(self.labels, self.logits.shape[-1:] == (1,))
        check_samples(self.logits, self.labels, self.ids)
        named = {f"signal {name!r}": value for name, value in self.signals.items()}
        check_exits({"logits": self.logits, **named}, len(self), self.num_exits)
        check_layers(self.meta, self.num_exits)
        if self.token_depth is not None:
            self.token_depth.check(len(self))

    def __repr__(self) -> str:
        sizes = f"{len(self)} samples, {self.num_exits} exits, {self.num_labels} labels"
        return f"{type(self).__name__}({sizes}, {self.meta.get('source')!r})"

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
    def exit_costs(self) -> list[float]:
        """`(exits,)` cost of exiting at each exit in layers: `exit_layers` plus the branches of all exits up to it."""
        return list(self.meta.get("exit_costs") or self.exit_layers)

    def costs_under(self, policy: ExitPolicy | None) -> list[float]:
        """`exit_costs`, without the branches of exits whose signals `policy` does not need, as engines skip them."""
        if policy is None or not self.meta.get("exit_costs"):
            return self.exit_costs
        needed = [*map(policy.needs, range(1, self.num_exits)), True]
        branches = np.diff(self.exit_costs, prepend=0) - np.diff(self.exit_layers, prepend=0)
        return list((np.array(self.exit_layers) + np.cumsum(branches * needed)).tolist())

    def fixed_speedups(self) -> list[float]:
        """For each exit the layer speed-up if all samples exit there, and no other exit's branch is run."""
        own = np.array(self.exit_layers) + np.diff(np.array(self.exit_costs) - self.exit_layers, prepend=0)
        return list((full_depth_cost(self.exit_layers, self.exit_costs) / own).tolist())

    @property
    def metric(self) -> str:
        """The task's metric, a name of `beem_plugin.common.metrics`."""
        return str(self.meta.get("metric") or ("pearson_spearman" if self.is_regression else "accuracy"))

    @property
    def source(self) -> str:
        return str(self.meta.get("source", ""))

    @property
    def is_regression(self) -> bool:
        """Whether exits predict one value, and labels are values."""
        return self.num_labels == 1

    @property
    def known(self) -> Tensor:
        """`(samples,)` bool: whether the label is known."""
        return known_labels(self.labels)

    @property
    def has_labels(self) -> bool:
        return len(self) > 0 and bool(self.known.all())

    @property
    def has_logits(self) -> bool:
        """Whether the trace contains the logits of all labels, not only a summary of them."""
        return True

    @property
    def predictions(self) -> Tensor:
        """`(samples, exits)` int64: the label predicted at each exit; of a regression float64, its value."""
        return prediction_of(self.logits.to(decision_dtype(self.logits.device)) if self.is_regression else self.logits)

    def same_data(self, other: ExitTrace) -> bool:
        """Whether both contain exactly the same numbers."""
        return self.logits.shape == other.logits.shape and bool((self.logits == other.logits).all())

    def exit_signals(self, exit_number: int) -> ExitSignals:
        """The signals of exit `exit_number` (1-based) for all samples."""
        column = exit_number - 1
        return ExitSignals(self.logits[:, column], {name: value[:, column] for name, value in self.signals.items()})

    def with_logits(self, logits: Tensor) -> ExitTrace:
        """The same samples with other logits."""
        return replace(self, logits=logits)

    def select(self, index: Tensor | Sequence[int]) -> ExitTrace:
        """The trace of the samples at `index`, in that order, or of those where a bool `index` is true."""
        rows = rows_of(index)
        return ExitTrace(
            logits=self.logits[rows],
            labels=self.labels[rows],
            ids=None if self.ids is None else [self.ids[row] for row in rows.tolist()],
            signals={name: value[rows] for name, value in self.signals.items()},
            meta=self.meta,
            token_depth=None if self.token_depth is None else self.token_depth.select(rows),
        )

    def depth(self, exits: Tensor, policy: ExitPolicy | None = None) -> dict[str, Any]:
        """`depth_summary` under `policy`; if tokens exit one by one, the speed-ups are those of the tokens."""
        return {**depth_summary(exits, self.exit_layers, self.costs_under(policy)), **self._token_summary()}

    def histogram_depth(self, histogram: Sequence[int], policy: ExitPolicy | None = None) -> dict[str, Any]:
        """`depth` from the number of samples that exit at each exit."""
        return {**histogram_summary(histogram, self.exit_layers, self.costs_under(policy)), **self._token_summary()}

    def _token_summary(self) -> dict[str, Any]:
        return {} if self.token_depth is None else self.token_depth.summary()

    def calibration_errors(self) -> list[float]:
        """The expected calibration error of every exit, over the labelled samples."""
        labelled = self.select(self.known)
        exits = map(labelled.exit_signals, range(1, self.num_exits + 1))
        return [expected_calibration_error(one.confidence, one.prediction == labelled.labels) for one in exits]

    def report_on(self, policy: ExitPolicy, **fitted: Any) -> CalibrationReport:
        return report_on(policy, self, **fitted)

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file without pickled objects, first under a temporary name."""
        arrays = {"logits": self.logits.numpy().astype(np.float32, copy=False), "labels": self.labels.numpy()}
        if self.ids is not None:
            arrays["ids"] = np.array([str(name) for name in self.ids], dtype=np.str_)
        for name, value in self.signals.items():
            arrays[f"signal_{name}"] = value.numpy().astype(np.float32, copy=False)
        if self.token_depth is not None:
            arrays.update(self.token_depth.to_arrays())
        write_arrays(path, arrays, self.meta)

    @classmethod
    def load(cls, path: str | Path) -> ExitTrace:
        """Reads a trace file; one that is missing, no `.npz`, incomplete or not finite is a `DataError`."""
        arrays = read_arrays(path)
        kind = next((kind for name, kind in cls.kinds.items() if name in arrays), ExitTrace)
        try:
            return kind.from_arrays(arrays)
        except DataError as error:
            raise DataError(f"{path}: {str(error).removeprefix('trace: ')}") from None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ExitTrace:
        """The trace in a file's arrays."""
        require_arrays(arrays, {"logits", "labels"})
        logits, labels = arrays["logits"], arrays["labels"]
        is_regression = logits.shape[-1:] == (1,)
        kinds = ("f", "floating (one logit: a regression)") if is_regression else ("iu", "integer")
        if logits.dtype.kind != "f" or labels.dtype.kind not in kinds[0]:
            raise DataError(f"logits must be floating and labels {kinds[1]}, found {logits.dtype} and {labels.dtype}")
        with np.errstate(over="ignore"):  # an overflow is refused as not finite
            values = torch.from_numpy(logits.astype(np.float32))
        return ExitTrace(
            logits=values,
            labels=torch.from_numpy(labels.astype(np.float32 if is_regression else np.int64)),
            ids=[str(name) for name in arrays["ids"]] if "ids" in arrays else None,
            signals=signals_of(arrays),
            meta=meta_of(arrays),
            token_depth=TokenDepth.from_arrays(arrays),
        )


def rows_of(index: Tensor | Sequence[int]) -> Tensor:
    """`(kept,)` int64 positions from positions or a bool mask."""
    rows = torch.as_tensor(index)
    return rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows.to(torch.int64)
