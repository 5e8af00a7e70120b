"""The paper's tables and figures end to end, on tiny encoders; they share the trainings."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.calibration.curves import threshold_curve
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.paper import figures
from beem_plugin.comparison.paper.captions import caption_variants
from beem_plugin.comparison.paper.methods import (
    CAPTION_METHODS,
    LAYOUTS,
    METHODS,
    Choices,
    settings_of,
    shown_encoder,
    variants_of,
)
from beem_plugin.comparison.paper.paper_tables import run
from beem_plugin.comparison.paper.tables import depth_of
from beem_plugin.comparison.rules import RULES, load_traces, rule_scores
from beem_plugin.rendering.plots import plots_available
from tests.ablation_in_process import train_in_process
from tests.tiny_caption_configs import DECODER, ENCODER
from tests.tiny_project import load_script

TINY = {"trainer.cuda_device": -1, "dataset_reader.max_instances": 24}
IMAGES = {
    "dataset_reader.num_train": 24,
    "dataset_reader.num_val": 4,
    "dataset_reader.num_test": 4,
    "dataset_reader.image_size": 16,
    "dataset_reader.holdout_fraction": 0.3,
    "model.decoder.backbone.encoder": ENCODER,
    "model.decoder.backbone.decoder": DECODER,
    "model.decoding.max_length": 5,
    "trainer.cuda_device": -1,
}

Call = Callable[..., int]


def parsed(*arguments: str) -> Any:
    return load_script("paper_tables")["parse"](arguments)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch, tiny_environment: dict[str, str]) -> list[Any]:
    """The jobs that train, in this process."""
    for name, value in tiny_environment.items():
        monkeypatch.setenv(name, value)
    return train_in_process(monkeypatch)


@pytest.fixture
def call(output: Path) -> Call:
    def call_script(*arguments: str, overrides: dict[str, Any] = TINY) -> int:
        common = ["--output", str(output), "--seeds", "2", "--epochs", "1", "-o", json.dumps(overrides)]
        return run(parsed(*common, *arguments))

    return call_script


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def of_method(lines: Sequence[dict[str, str]], method: str, key: str) -> list[float]:
    return [float(line[key]) for line in lines if line["method"] == method]


def test_table_1_with_medians_differences_and_settings(output: Path, trainings: list[Any], call: Call) -> None:
    methods = ["final", "deebert", "pabee", "beem-c", "beem-a"]
    assert call("--table", "1", "--tasks", "rte", "--methods", *methods) == 0
    assert len(trainings) == 8  # the two rules of BEEM share theirs
    lines = read_csv(output / "table_1.csv")
    content = json.loads((output / "table_1.json").read_text())
    rows = {row["model"]: row for row in content["rows"]}
    assert list(rows) == ["backbone", "DeeBERT", "PABEE", "BEEM-C", "BEEM-A"]
    final = of_method(lines, "final", "value")
    for method, row in (("deebert", "DeeBERT"), ("beem-a", "BEEM-A")):
        found = [value - base for value, base in zip(of_method(lines, method, "value"), final, strict=True)]
        assert rows[row]["RTE Acc"] == pytest.approx(statistics.median(found))
        assert rows[row]["RTE Acc low"] == pytest.approx(min(found))
        assert of_method(lines, method, "difference") == pytest.approx(found)
    assert rows["backbone"]["RTE Spd"] == 1.0
    markdown = (output / "table_1.md").read_text()
    assert "| model | RTE Acc | RTE Spd |" in markdown and "## Settings" in markdown
    assert re.search(r"\| PABEE \| \**[+-]\d", markdown) and "Judged on validation" in markdown
    settings = {row["method"]: row for row in content["settings"]}
    assert settings["pabee"]["rate"] == "2e-05" and settings["deebert"]["batch"] == "8"
    assert settings["pabee"]["epochs"] == "1" and '"patience": 6' in settings["pabee"]["rule"]
    assert "\\begin{tabular}{lrr}" in (output / "table_1.tex").read_text()
    # A second call trains nothing, and gives the same.
    before = (output / "table_1.csv").read_text()
    assert call("--table", "1", "--tasks", "rte", "--methods", *methods) == 0
    assert len(trainings) == 8 and (output / "table_1.csv").read_text() == before


def test_tables_2_4_and_5_and_both_figures_take_the_same_trainings(
    output: Path, trainings: list[Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "JOINT_SPEEDS", (1.5, 2.0))  # each is a search that takes a second
    few = ("final", "pabee", "beem-a")
    one = ("--tasks", "rte", "--seeds", "1")
    assert call("--table", "2", *one, "--methods", *few) == 0
    assert call("--table", "4", *one) == 0
    assert call("--table", "5", *one) == 0
    rows = json.loads((output / "table_5.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["BEEM-A, one threshold", "BEEM-A"]
    assert all(0 <= row["RTE Acc"] <= 100 for row in rows)  # absolute
    assert call("--figure", "alpha", *one) == 0
    points = read_csv(output / "figure_alpha.csv")
    rules = {"beem-a", "beem-c", "pabee", "deebert"}
    fitted = {f"{name}, a threshold an exit" for name in ("beem-a", "beem-c")}
    assert {point["series"] for point in points} == rules | fitted
    speeds = [point["setting"] for point in points if point["series"] in fitted]
    assert sorted(set(speeds)) == ["1.5", "2.0"]
    assert [point["setting"] for point in points if point["series"] == "pabee"] in (["2", "1"], ["1", "2"])
    assert call("--figure", "lambda", *one) == 0
    points = read_csv(output / "figure_lambda.csv")
    assert [float(point["setting"]) for point in points][:3] == [0.02, 0.05, 0.1]
    speeds = [float(point["layer_speedup"]) for point in points]
    assert speeds == sorted(speeds)  # the larger lambda, the sooner a sum passes the threshold
    if plots_available():
        assert (output / "figure_alpha.svg").is_file() and (output / "figure_lambda.png").is_file()
    assert not trainings


def test_both_development_sets_of_mnli(output: Path, trainings: list[Any], call: Call) -> None:
    assert call("--table", "1", "--tasks", "mnli", "--methods", "final", "--seeds", "1") == 0
    lines = read_csv(output / "table_1.csv")
    assert [line["method"] for line in lines] == ["final"]
    for line in lines:
        both = [float(line[f"{part}_accuracy"]) for part in ("matched", "mismatched")]
        assert float(line["value"]) == pytest.approx(sum(both) / 2)


def test_table_3_on_generated_scenes(output: Path, trainings: list[Any], call: Call) -> None:
    methods = ("--methods", "reduced", "beem-c", "beem-a")
    own = {**IMAGES, "model.decoding.num_beams": 2}
    arguments = ("--table", "3", "--set", "shapes", *methods, "--metrics", "bleu", "cider", "--seeds", "1")
    assert call(*arguments, overrides=own) == 0
    assert len(trainings) == 2
    rows = json.loads((output / "table_3.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["Decoder-2L", "BEEM-C", "BEEM-A"]
    assert rows[0]["Speedup"] == pytest.approx(1.5) and rows[1]["Speedup"] >= 1.0
    assert all(0 <= row["BLEU-1"] <= 100 and row["SPICE"] is None for row in rows)
    assert call(*arguments, overrides=own) == 0 and len(trainings) == 2


def test_a_dry_run_tells_runs_time_and_downloads(
    output: Path, trainings: list[Any], call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("--table", "1", "--tasks", "rte", "--methods", "pabee", "elasticbert", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "2 trainings to run, 4 done" in said and "from the trainings that are done" in said
    assert "nothing is downloaded" in said and not trainings
    monkeypatch.setenv("GLUE_DIR", "")
    monkeypatch.setenv("BEEM_BACKBONE", "")
    assert call("--table", "4", "--tasks", "rte", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "albert-large-v2, bert-large-uncased, nyu-mll/glue (rte)" in said.replace("\n", " ")


def test_every_method_is_swept_and_its_traces_are_kept(output: Path, trainings: list[Any], call: Call) -> None:
    methods = ("pabee", "pabee confidence", "reduced", "beem-a")
    assert call("--table", "methods", "--tasks", "rte", "--seeds", "1", "--methods", *methods) == 0
    assert len(trainings) == 1, "the reduced network"
    assert {path.name for path in (output / "traces").iterdir()} == {"final", "pabee", "reduced", "beem"}
    calibration, validation = load_traces(output / "traces" / "beem" / "rte-0")
    rows = {row["method"]: row for row in json.loads((output / "table_methods.json").read_text())["runs"]}
    curve = threshold_curve(rule_scores(RULES["beem-a"], calibration, validation))
    assert rows["beem-a"]["area"] == pytest.approx(curve.area(), abs=0.5)
    assert rows["beem-a"]["at_1.5"] == pytest.approx(100 * (curve.at(1.5) or 0), abs=1)
    right = (validation.predictions[:, -1] == validation.labels).double().mean()
    assert rows["beem-a"]["final"] == pytest.approx(100 * float(right))
    assert rows["pabee"]["final"] == rows["pabee confidence"]["final"]
    cut = rows["reduced"]
    assert cut["area"] is None and cut["layer_speedup"] == 1.5 and cut["parameters"] < rows["pabee"]["parameters"]
    markdown = (output / "table_methods_swept.md").read_text()
    assert "# accuracy at 2.0x" in markdown and "rte (BEEM-A)" in markdown


def test_published_points_are_replaced_only_when_wanted() -> None:
    fast, elastic, reduced = variants_of(("fastbert", "elasticbert", "reduced"), "rte", "albert-base-v2", 9)
    assert fast.policy["thresholds"] == 0.5 and fast.policy["normalized"]
    assert elastic.policy["thresholds"] == 0.1
    (at_2,) = variants_of(("fastbert",), "rte", "albert-base-v2", 9, Choices(speedup=2.0))
    assert at_2.policy["thresholds"] == {"type": "budget", "speedup": 2.0}
    assert reduced.config["model"]["encoder"]["exit_layers"] == [9]


def test_layouts_name_known_methods_and_encoders() -> None:
    assert all(set(layout.methods) <= METHODS.keys() for layout in LAYOUTS.values())
    assert set(LAYOUTS["1"].methods) - set(LAYOUTS["2"].methods) == {"pcee"}
    assert list(CAPTION_METHODS)[0] == "final" and len(CAPTION_METHODS) == 11
    assert (shown_encoder("albert-base-v2"), shown_encoder("bert-large-uncased")) == ("ALBERT", "BERT-large")
    assert (depth_of("albert-base-v2"), depth_of("bert-large-uncased")) == (12, 24)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--table", "1", "--methods", "pabe"), "--methods: found 'pabe'"),
        (("--table", "1", "--seeds", "0"), "--seeds: found 0, allowed: 1 or more"),
        (("--table", "1", "-o", "[1]"), r"--overrides: found \[1\], allowed: a JSON object"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(parsed(*arguments, "--output", str(tmp_path)))


def test_flickr8k_starts_from_its_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPTION_LM", "runs/words")
    found = caption_variants("flickr8k", {key: key for key in ("final", "reduced", "deebert")}, Choices())
    final, reduced, deebert = (variant.config for variant in found)
    assert final["model"]["initialize_from"] == "runs/words"
    # Exits of a network that is cut are not the language model's: only its blocks are taken over.
    blocks = {"archive": "runs/words", "include": [r"^decoder\.backbone\."]}
    assert reduced["model"]["initialize_from"] == blocks and reduced["model"]["decoder"]["exit_layers"] == [4]
    frozen = final["trainer"]["no_grad"]
    assert [set(frozen) <= set(stage["no_grad"]) for stage in deebert["trainer"]["stages"]] == [True, True]
    assert settings_of(found[0])["batch"] == "20"
