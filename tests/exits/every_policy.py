"""One policy of each registered kind, calibrated where it must be."""

from __future__ import annotations

from typing import Any

import torch

import beem_plugin.components  # noqa: F401  registers everything
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policy import ExitPolicy

THRESHOLDS = {
    "beem": 0.15,
    "max_probability": 0.8,
    "margin": 0.6,
    "entropy": 0.4,
    "voting": 0.9,
    "similarity": 0.7,
    "cascaded_ensemble": 0.8,
    "predicted_error": 0.3,
    "expected_gain": 0.02,
    "gate": 0.5,
    "halting": 0.5,
}
SIGNALS = ("similarity", "gate", "halt", "predicted_error", "position")


def registered_policies() -> set[str]:
    """The first names of the package's own policies, without those that tests register and those that adapt."""
    classes = {ExitPolicy.resolve_class_name(name)[0] for name in ExitPolicy.list_available()}
    package = "beem_plugin.exits.policies."
    own = (kind for kind in classes if kind.__module__.startswith(package) and not kind.adapts)
    return {next(name for name in ExitPolicy.list_available() if ExitPolicy.by_name(name) is kind) for kind in own}


def configs(num_exits: int) -> list[dict[str, Any]]:
    """Configs of all policies, some in several variants, under which some samples exit early and some do not."""
    weights = [0.1 * number for number in range(1, num_exits + 1)]
    found: list[dict[str, Any]] = [{"type": name, "thresholds": value} for name, value in THRESHOLDS.items()]
    found[0]["weights"] = weights
    # The first vote is unanimous.
    found[list(THRESHOLDS).index("voting")]["min_exit"] = 2
    return found + [
        {"type": "beem", "weights": weights, "thresholds": 0.2, "on_disagreement": "zero", "min_exit": 2},
        {"type": "max_probability", "thresholds": 0.8, "fallback": "most_confident"},
        {"type": "entropy", "thresholds": 0.4, "normalized": True},
        {"type": "cascaded_ensemble", "thresholds": 0.8, "weights": "fit"},
        {"type": "cascaded_ensemble", "thresholds": 0.8, "weights": "adam"},
        {"type": "patience", "patience": 1},
        *(
            {"type": "confident_patience", "patience": 1, "entropy_threshold": 0.6, "output": output}
            for output in ("last", "run_mean", "mean")
        ),
        {"type": "calibrated", "policy": {"type": "entropy", "thresholds": 0.4}},
        {"type": "calibrated", "policy": {"type": "margin", "thresholds": 0.6}, "calibration": "vector"},
        *(
            {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 0.5}, "decay": decay}
            for decay in ("calm", "mue")
        ),
        {"type": "fixed_exit", "exit": min(2, num_exits)},
        {"type": "final"},
    ]


def every_policy(num_exits: int, num_labels: int = 3) -> list[ExitPolicy]:
    """Policies of `configs`, bound and calibrated on random data; they cover all registered policies."""
    generator = torch.Generator().manual_seed(0)
    opinion = torch.randn(200, 1, num_labels, generator=generator)
    trace = ExitTrace(
        1.5 * opinion + torch.randn(200, num_exits, num_labels, generator=generator),
        opinion[:, 0].argmax(-1),
        signals={name: torch.rand(200, num_exits, generator=generator) for name in SIGNALS},
    )
    policies = [ExitPolicy.from_params(config) for config in configs(num_exits)]
    for policy in policies:
        policy.calibrate(trace)
        assert policy.is_calibrated
    assert {policy.registered_name for policy in policies} == registered_policies()
    return policies
