"""Intervals and paired tests against values worked out by hand, and tables in every format."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import binomtest

from beem_plugin.calibration.report import binomial_interval
from beem_plugin.evaluation.statistics import (
    crossed_difference,
    mcnemar,
    mean_and_error,
    over_tasks,
    paired_difference,
    speedup_interval,
)
from beem_plugin.rendering.tables import Column, Estimate, Table, text


def test_mcnemar_is_a_binomial_test_of_the_discordant_samples() -> None:
    first = np.array([True] * 6 + [False] * 1 + [True] * 13)
    second = np.array([False] * 6 + [True] * 1 + [True] * 13)
    found = mcnemar(first, second)
    # Two-sided: P(6 or more of 7) + P(1 or fewer of 7) = 2 * 8 / 128.
    assert found.p_value == pytest.approx(16 / 128) and found.difference == 0.25 and found.within_noise
    # Agresti and Min: half a sample more in each of the four cells; the two rules differ in 6.5 and 1.5 of 22.
    half = 1.959964 * math.sqrt(8 - 25 / 22) / 22
    assert found.interval == pytest.approx((5 / 22 - half, 5 / 22 + half), rel=1e-5)
    assert mcnemar(first, first).p_value == 1.0
    assert not mcnemar(np.ones(20, dtype=bool), np.arange(20) < 8).within_noise


def test_intervals_of_a_rate_are_exact() -> None:
    for errors in (0, 1, 7, 40):
        expected = binomtest(errors, 40).proportion_ci(0.9, method="exact")
        assert binomial_interval(errors, 40, 0.9) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_seeds_are_paired() -> None:
    found = paired_difference([0.9, 0.8, 0.85], [0.88, 0.78, 0.83])
    assert found.difference == pytest.approx(0.02) and not found.within_noise
    assert paired_difference([0.9], [0.8]).within_noise, "one seed tells nothing"
    assert mean_and_error([1.0, 3.0]) == (2.0, pytest.approx(1.0))


def test_the_interval_of_a_speed_up_holds_it() -> None:
    interval = speedup_interval([50, 50], [3, 12])
    assert interval is not None and interval[0] < 12 / 7.5 < interval[1]
    assert speedup_interval([10, 0], [3, 12]) == (4.0, 4.0) and speedup_interval([0, 0], [3, 12]) is None


def test_one_table_in_every_format(tmp_path: Path) -> None:
    columns = [*text("rule"), Column("accuracy", factor=100, better="up"), Column("speed-up", unit="x", better="up")]
    table = Table(columns, [["a|b_1", Estimate(0.5, bounds=(0.4, 0.6)), 1.5], ["c", Estimate(0.7, 0.01), None]], "t")
    assert table.cells() == [["a|b_1", "50.00 [40.00, 60.00]", "1.50x"], ["c", "70.00 ± 1.00", "-"]]
    assert "| a\\|b_1 | 50.00 [40.00, 60.00] | 1.50x |" in table.to_markdown()
    assert "| c | **70.00 ± 1.00** | - |" in table.to_markdown()
    assert "a|b\\_1 & 50.00" in table.to_latex() and "\\textbf{70.00 $\\pm$ 1.00}" in table.to_latex()
    for end in ("csv", "json", "md", "tex"):
        table.write(tmp_path / f"t.{end}")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["accuracy low"] == "0.4"
    assert json.loads((tmp_path / "t.json").read_text())["rows"][1]["accuracy"] == 0.7


def test_seeds_and_samples_count_as_drawn() -> None:
    generator = np.random.default_rng(0)
    first = generator.random((1, 50)) < 0.7
    second = generator.random((1, 50)) < 0.5
    alone = crossed_difference(first, second)
    over_samples = paired_difference(first[0].astype(float).tolist(), second[0].astype(float).tolist())
    assert alone.difference == pytest.approx(over_samples.difference)
    assert alone.p_value == pytest.approx(over_samples.p_value) and alone.interval == pytest.approx(
        over_samples.interval
    )
    # Without differences between samples it is the t-test over seeds.
    values = np.array([[0.1], [0.2], [0.3]])
    seeds = crossed_difference(np.repeat(values, 40, 1), np.zeros((3, 40)))
    assert seeds.p_value == pytest.approx(paired_difference([0.1, 0.2, 0.3], [0, 0, 0]).p_value)
    # Both scatters count.
    both = crossed_difference(values + (np.arange(40) % 2), np.zeros((3, 40)))
    assert both.interval is not None and seeds.interval is not None
    assert both.interval[1] - both.interval[0] > 0.3 and both.p_value is not None
    assert crossed_difference(first, first).p_value == 1.0


def test_of_all_tasks_the_error_is_that_of_a_mean_of_means() -> None:
    # Standard errors 1 / sqrt(3) and 1 within the tasks, whatever lies between them.
    assert over_tasks({"one": [1.0, 2.0, 3.0], "two": [40.0, 42.0]}) == pytest.approx((21.5, math.sqrt(1 / 3 + 1) / 2))


def test_two_seeds_are_few() -> None:
    # Two seeds that agree by chance tell no more than what is left allows.
    found = crossed_difference(np.array([[1.0, 0, 1, 0], [0, 1, 1, 0]]), np.zeros((2, 4)))
    # Mean squares over samples 1/6 / 4 and over seeds 0; what is left has the sum 1, over 3 degrees of freedom and 8.
    rest = 1 / 3 / 8
    variance, spread = rest, rest**2 / 3 + rest**2 / 1 + rest**2 / 3
    half = stdtrit(variance**2 / spread, 0.975) * variance**0.5
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half))
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        drawn = rng.normal(0, 0.03, (2, 1)) + rng.normal(0, 0.2, (1, 300)) + rng.normal(0, 0.25, (2, 300))
        low, high = crossed_difference(drawn, np.zeros_like(drawn)).interval or (1.0, 0.0)
        covered += low <= 0 <= high
    assert covered >= 930


def test_a_narrow_terminal_shows_a_row_in_a_line() -> None:
    rows = [[f"rule {number}", Estimate(0.5, bounds=(0.4, 0.6)), 1.5, 3.25, "12 0 0 4"] for number in range(3)]
    columns = [*text("rule"), Column("accuracy", factor=100), Column("layer speed-up", unit="x")]
    columns += [Column("average exit", spare=True), Column("left at exit 1, 2, ...", "text", spare=True)]
    table = Table(columns, rows, notes=["[..]: 95 % intervals", "warning: few samples"])
    wide = table.fitted(90)
    assert wide.cells() == table.cells() and wide.notes == table.notes
    narrow = table.fitted(50)
    assert narrow.cells()[0] == ["rule 0", "50.00", "1.50x", "3.25"]
    assert [head.split() for head in narrow.heads][2:] == [["layer", "speed-up"], ["average", "exit"]]
    assert narrow.notes == ["left out for a line a row: intervals; left at exit 1, 2, ...", "warning: few samples"]
    assert table.fitted(1).cells() == [[f"rule {number}", "50.00", "1.50x"] for number in range(3)]
