"""Trace files: what is written is read, and what is damaged is refused by name."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.speed import TokenDepth
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import DataError
from beem_plugin.exits.policies import MaxProbability
from tests.exits.random_traces import random_trace


def small_trace(**fields: Any) -> ExitTrace:
    logits = torch.arange(24, dtype=torch.float32).reshape(4, 3, 2) / 7
    return ExitTrace(logits, torch.tensor([0, 1, -1, 1]), **fields)


def write(path: Path, **arrays: Any) -> Path:
    """A file as `save` would write it, with some arrays replaced; `None` leaves one out."""
    whole = {
        "logits": np.zeros((2, 3, 2), np.float32),
        "labels": np.zeros(2, np.int64),
        "meta": np.array("{}"),
        **arrays,
    }
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return path


# --- round trip -----------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path):
    meta = {"exit_layers": [2, 4, 12], "label_names": ["no", "yes — ja"], "metric": "f1", "source": "train[holdout]"}
    signals = {"halt": torch.rand(4, 3), "similarity": -torch.rand(4, 3)}
    trace = small_trace(ids=["a", "ß", "", "4"], signals=signals, meta=meta)
    trace.save(tmp_path / "trace.npz")
    read = ExitTrace.load(tmp_path / "trace.npz")
    assert torch.equal(read.logits, trace.logits) and read.logits.dtype == torch.float32
    assert torch.equal(read.labels, trace.labels) and read.labels.dtype == torch.int64
    assert read.ids == trace.ids
    assert set(read.signals) == {"halt", "similarity"}
    assert all(torch.equal(read.signals[name], signals[name]) for name in signals)
    assert read.meta == meta
    assert (read.exit_layers, read.metric) == ([2, 4, 12], "f1")


def test_a_trace_with_nothing_optional(tmp_path):
    small_trace().save(tmp_path / "trace.npz")
    read = ExitTrace.load(tmp_path / "trace.npz")
    assert (read.ids, dict(read.signals), dict(read.meta)) == (None, {}, {})
    assert (read.exit_layers, read.metric, read.has_labels) == ([1, 2, 3], "accuracy", False)


def test_decisions_on_a_loaded_trace_are_the_same(tmp_path):
    rng = random.Random(4)
    for _ in range(10):
        trace = random_trace(rng)
        trace.save(tmp_path / "trace.npz")
        before, after = (replay(MaxProbability(0.7), t) for t in (trace, ExitTrace.load(tmp_path / "trace.npz")))
        assert torch.equal(before.exits, after.exits)
        assert torch.equal(before.log_probabilities, after.log_probabilities)


def test_no_samples_survive_the_round_trip(tmp_path):
    ExitTrace(torch.zeros(0, 3, 2), torch.zeros(0, dtype=torch.int64)).save(tmp_path / "trace.npz")
    read = ExitTrace.load(tmp_path / "trace.npz")
    assert (len(read), read.num_exits, read.num_labels, read.has_labels) == (0, 3, 2, False)


def test_the_file_holds_the_documented_arrays_only(tmp_path):
    small_trace(ids=list("abcd"), signals={"gate": torch.rand(4, 3)}).save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"logits", "labels", "ids", "meta", "signal_gate"}
        assert (archive["logits"].dtype, archive["labels"].dtype) == (np.float32, np.int64)
        assert json.loads(str(archive["meta"])) == {}


def test_saving_leaves_no_temporary_file_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "trace.npz"
    path.write_text("old")
    small_trace().save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.npz"]
    assert len(ExitTrace.load(path)) == 4


def test_select_keeps_the_parts_together():
    trace = small_trace(ids=list("abcd"), signals={"halt": torch.rand(4, 3)}, meta={"metric": "f1"})
    part = trace.select([2, 0])
    assert (part.ids, part.labels.tolist(), part.metric) == (["c", "a"], [-1, 0], "f1")
    assert torch.equal(part.logits, trace.logits[[2, 0]])
    assert torch.equal(part.signals["halt"], trace.signals["halt"][[2, 0]])


def test_double_precision_and_small_integers_are_read_as_the_documented_types(tmp_path):
    path = write(tmp_path / "t.npz", logits=np.ones((2, 3, 2), np.float64), labels=np.array([0, 1], np.int8))
    read = ExitTrace.load(path)
    assert (read.logits.dtype, read.labels.dtype) == (torch.float32, torch.int64)


# --- damaged files --------------------------------------------------------------------------------


def refused(path: Path, *said: str) -> None:
    with pytest.raises(DataError) as caught:
        ExitTrace.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    for text in said:
        assert text in message


def test_a_missing_file(tmp_path):
    refused(tmp_path / "none.npz", "no such trace file", "allennlp trace")


@pytest.mark.parametrize("content", [b"", b"logits", b"\x80\x04", b"PK\x03\x04 cut off"])
def test_what_is_no_archive(tmp_path, content):
    path = tmp_path / "trace.npz"
    path.write_bytes(content)
    refused(path, "trace file")


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.95])
def test_a_truncated_file(tmp_path, keep):
    path = tmp_path / "trace.npz"
    small_trace().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    refused(path, "trace file")


def test_flipped_bytes_in_the_data(tmp_path):
    path = tmp_path / "trace.npz"
    ExitTrace(torch.randn(50, 3, 2), torch.zeros(50, dtype=torch.int64)).save(path)
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(byte ^ 0xFF for byte in content[200:220])
    path.write_bytes(bytes(content))
    refused(path, "trace file")


def test_pickled_objects_are_not_loaded(tmp_path):
    path = write(tmp_path / "trace.npz", ids=np.array([{"a": 1}, None], dtype=object))
    refused(path, "trace file")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps({"logits": 1}))
    refused(tmp_path / "pickle.npz", "trace file")


@pytest.mark.parametrize("name", ["logits", "labels"])
def test_a_missing_array_is_named(tmp_path, name):
    refused(write(tmp_path / "trace.npz", **{name: None}), f"lacks ['{name}']")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"logits": np.zeros((2, 3), np.float32)}, "must be (samples, exits, labels), found shape (2, 3)"),
        ({"logits": np.zeros((2, 0, 2), np.float32)}, "no exit"),
        ({"logits": np.zeros((2, 3, 0), np.float32)}, "no logit an exit"),
        ({"logits": np.zeros((2, 3, 1), np.float32)}, "labels floating (one logit: a regression)"),
        ({"logits": np.zeros((2, 3, 2), np.int64)}, "logits must be floating"),
        ({"labels": np.zeros(2, np.float32)}, "labels integer"),
        ({"labels": np.zeros(3, np.int64)}, "2 samples in logits, but labels have shape (3,)"),
        ({"labels": np.array([0, 2])}, "sample 1 has label 2, allowed: -1 (unknown) to 1"),
        ({"labels": np.array([-2, 0])}, "sample 0 has label -2"),
        ({"ids": np.array(["a"])}, "but 1 ids"),
        ({"signal_halt": np.zeros((2, 2), np.float32)}, "signal 'halt' has shape (2, 2), allowed: (2, 3)"),
        ({"meta": np.array("{")}, "meta is not JSON"),
        ({"meta": np.array('{"exit_layers": [1, 2]}')}, "exit_layers must be 3 rising layer numbers"),
        ({"meta": np.array('{"exit_layers": [1, 3, 2]}')}, "exit_layers"),
        ({"meta": np.array('{"exit_layers": [0, 1, 2]}')}, "exit_layers"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, said):
    refused(write(tmp_path / "trace.npz", **arrays), said)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_sample_and_exit(tmp_path, value):
    logits = np.zeros((5, 3, 2), np.float32)
    logits[3, 1, 0] = value
    labels = np.zeros(5, np.int64)
    refused(write(tmp_path / "trace.npz", logits=logits, labels=labels), "sample 3 at exit 2 are not finite")
    with pytest.raises(DataError, match="logits of sample 3 at exit 2"):
        ExitTrace(torch.from_numpy(logits), torch.from_numpy(labels))
    signal = np.zeros((2, 3), np.float32)
    signal[1, 2] = value
    refused(write(tmp_path / "signal.npz", signal_gate=signal), "signal 'gate' of sample 1 at exit 3")


def test_token_depths_are_kept_and_checked(tmp_path: Path) -> None:
    depth = TokenDepth(torch.tensor([[1, 2], [0, 3], [4, 0], [1, 1]]), torch.ones(4, 2, dtype=torch.float64) * 2, 6)
    trace = small_trace(token_depth=depth)
    trace.save(tmp_path / "t.npz")
    found = ExitTrace.load(tmp_path / "t.npz").token_depth
    assert found is not None and torch.equal(found.counts, depth.counts) and found.full_depth == 6
    assert found.summary()["layer_speedup"] == 6 * 12 / 18
    part = trace.select([2, 0]).token_depth
    assert part is not None and part.counts.tolist() == [[4, 0], [1, 2]]
    with np.load(tmp_path / "t.npz") as file:
        arrays = dict(file)
    for changes, message in (
        ({"token_depth_counts": arrays["token_depth_counts"][:3]}, "4 samples, but token depths have shapes"),
        ({"token_depth_counts": -arrays["token_depth_counts"]}, "negative count"),
        ({"token_depth_full": np.array(1)}, "2 layers, but a full depth of 1"),
        ({"token_depth_macs": None}, "lacks"),
    ):
        kept = {name: value for name, value in {**arrays, **changes}.items() if value is not None}
        np.savez(tmp_path / "bad.npz", **kept)
        with pytest.raises(DataError, match=message):
            ExitTrace.load(tmp_path / "bad.npz")
