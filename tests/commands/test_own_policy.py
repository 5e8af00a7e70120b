"""A user's own package with one exit policy: nothing of ours is touched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.documentation.blocks import blocks_of
from tests.forked import command
from tests.tiny_project import ROOT, Result

POLICY = blocks_of(ROOT / "docs" / "extending.md")[0].code


def replay(folder: Path, *arguments: str) -> Result:
    return command("replay", "t.npz", "--policy", "p.json", "--output-file", "r.json", *arguments, folder=folder)


def test_a_users_exit_policy_is_found_and_calibrated(tmp_path: Path) -> None:
    (tmp_path / "my_rules").mkdir()
    (tmp_path / "my_rules" / "__init__.py").write_text("")
    (tmp_path / "my_rules" / "smoothed.py").write_text(POLICY)
    # An unrelated script in the working directory must not be run in search of a name.
    (tmp_path / "unrelated.py").write_text("open('was_run', 'w')")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 3, 2)).astype(np.float32)
    np.savez(tmp_path / "t.npz", logits=logits, labels=rng.integers(2, size=50))
    (tmp_path / "p.json").write_text(
        json.dumps({"type": "smoothed_confidence", "thresholds": {"type": "budget", "speedup": 1.5}})
    )

    unknown = replay(tmp_path)
    assert unknown.returncode == 1 and "smoothed_confidence" in unknown.stderr and "--include-package" in unknown.stderr
    assert not (tmp_path / "was_run").exists()

    found = replay(tmp_path, "--include-package", "my_rules", "--calibrate-on", "t.npz")
    assert found.returncode == 0, found.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    threshold = result["thresholds"][0]
    probability = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(1, keepdims=True)
    leaves = int((0.5 * probability.max(1).astype(np.float64) >= threshold - 1e-6).sum())
    assert result["exit_histogram"][0] == leaves and result["layer_speedup"] >= 1.5
    assert result["policy"]["decay"] == 0.5
