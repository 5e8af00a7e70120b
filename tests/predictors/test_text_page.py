"""The page of texts: its data are the policy's decisions, at the calibrated point and at others; texts are escaped."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from beem_plugin import load
from beem_plugin.calibration.operating_points import operating_points, with_budget
from beem_plugin.calibration.replay import replay
from beem_plugin.predictors import Predictor
from tests.tiny_project import run, sentences

HOSTILE = 'good </script><script>alert("1")</script> & <b>film'


class Page(HTMLParser):
    """Text of each element kind, the rows of tables, scripts, and every address that the page names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.addresses: list[str | None] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data

    @property
    def data(self) -> dict:
        return json.loads(next(text for given, text in self.scripts if given.get("id") == "data"))


def test_predict_writes_a_page_that_agrees_with_its_predictions(trained: Path, tmp_path: Path) -> None:
    source, output, html = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "page.html"
    texts = [text for text, _ in sentences(20, seed=11)] + [HOSTILE]
    source.write_text("".join(json.dumps({"sentence": text, "label": "positive"}) + "\n" for text in texts))
    run("predict", str(trained), str(source), "--output-file", str(output), "--html", str(html), "--silent")
    predictions = [json.loads(line) for line in output.read_text().splitlines()]
    page = Page(html.read_text())
    assert page.tags.count("script") == 2 and "b" not in page.tags, "texts are escaped"
    assert page.addresses == [], "nothing is loaded from elsewhere"
    data, model, current = page.data, page.data["model"], page.data["current"]
    assert [entry["texts"] for entry in data["texts"]] == [[text] for text in texts]
    assert {entry["gold"] for entry in data["texts"]} == {"positive"}
    assert model["labels"] == ["negative", "positive"] and model["exit_layers"] == [1, 2, 3]
    for entry, prediction in zip(data["texts"], predictions, strict=True):
        exit = prediction["exit"]
        assert entry["leaves"][current] == exit
        assert model["labels"][entry["answers"][current]] == prediction["label"]
        reading = entry["exits"][exit - 1]
        assert reading["score"] == pytest.approx(prediction["score"], abs=1e-5)
        probabilities = prediction["probabilities"]
        largest = max(probabilities.values() if isinstance(probabilities, dict) else probabilities)
        assert reading["confidence"] == pytest.approx(largest, abs=1e-5)
    shown = [
        (int(row[0]), row[3].removesuffix(" (positive)")) for row in page.rows if len(row) == 4 and row[0] != "exit"
    ]
    assert [exit for exit, _ in shown] == sorted(row["exit"] for row in predictions), "sorted by depth without scripts"
    assert sorted(text for _, text in shown) == sorted(texts)


def test_points_are_the_policy_at_other_thresholds(trained: Path) -> None:
    predictor = Predictor.from_path(trained)
    trace, policy = predictor.calibration_trace, predictor.model.exit_policy
    assert trace is not None
    points = operating_points(policy, trace)
    assert [point.is_current for point in points].count(True) == 1
    speeds = [point.speedup for point in points]
    assert speeds == sorted(speeds) and speeds[0] == 1.0 and len(points) > 2
    for point in points:
        decisions = replay(point.policy, trace)
        histogram = [float((decisions.exits == number).float().mean()) for number in (1, 2, 3)]
        assert point.shares == pytest.approx(histogram)
        assert point.metric == pytest.approx(float((decisions.predictions == trace.labels).float().mean()))
        assert point.thresholds is not None and len(point.thresholds) == 2
    full = with_budget(policy, trace, None)
    assert full is not None and set(replay(full, trace).exits.tolist()) == {3}
    assert policy.to_config() == predictor.model.exit_policy.to_config()


def test_policies_without_thresholds_and_archives_without_a_trace_have_one_point(trained: Path) -> None:
    pipeline = load(trained)
    for changed in (pipeline.with_policy({"type": "patience", "patience": 1}), pipeline.with_policy("final")):
        page = changed.new_predictor().text_page  # type: ignore[attr-defined]
        (point,) = page.data["points"]
        assert point["thresholds"] is None and point["is_current"] and len(point["shares"]) == 3
    predictor = Predictor.from_archive(pipeline.archive._replace(calibration=None))
    data = Page(predictor.page(predictor.predict_batch_json([{"sentence": "a good film"}]))).data
    assert [point["speedup"] for point in data["model"]["points"]] == [None]
    assert len(data["texts"]) == 1 and data["texts"][0]["gold"] is None
