"""A calibrated exit policy as an archive stores it: `policy.json`, `report.json` and `trace.npz`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.files import write_json
from beem_plugin.common.strict_json import read_json_object


@dataclass
class Calibration:
    policy: dict[str, Any]  # the calibrated policy as a config
    config: dict[str, Any]  # the policy as the config had it before
    report: dict[str, Any]  # the `CalibrationReport`
    trace: ExitTrace | None  # the outputs of all exits on the calibration data

    def save(self, folder: Path) -> None:
        """Writes `policy.json`, `report.json` and `trace.npz` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.trace is not None:
            self.trace.save(folder / "trace.npz")
        write_json(folder / "report.json", {**self.report, "config": self.config})
        write_json(folder / "policy.json", self.policy)

    @classmethod
    def load(cls, folder: Path) -> Calibration | None:
        """`None` if nothing was calibrated."""
        if not (folder / "policy.json").exists():
            return None
        report = read_json_object(folder / "report.json", f"{folder.name}/report.json")
        policy = read_json_object(folder / "policy.json", f"{folder.name}/policy.json")
        config = report.pop("config", {})
        trace = ExitTrace.load(folder / "trace.npz") if (folder / "trace.npz").exists() else None
        return cls(policy, config, report, trace)
