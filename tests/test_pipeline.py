"""The Python interface: `from beem_plugin import EarlyExitPipeline, load`."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from beem_plugin import EarlyExitPipeline, load
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.read_ahead import ReadAhead
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.predictors import Predictor
from tests.tiny_project import run, sentences

FIXTURES = Path(__file__).parent / "fixtures" / "release_0_1"
ROWS = sentences(70, seed=5)
TEXTS = [text for text, _ in ROWS]
NAMES = ["negative", "positive"]
LABELS = [NAMES[label] for _, label in ROWS]


@pytest.fixture(scope="module")
def pipeline(trained: Path) -> EarlyExitPipeline:
    return load(trained / "model.tar.gz")


@pytest.fixture(scope="module")
def expected(trained: Path) -> list[tuple[str, int]]:
    found = Predictor.from_path(trained).predict_batch_json([{"sentence": text} for text in TEXTS])
    return [(row["label"], row["exit"]) for row in found]


def labels_and_exits(predictions: Any) -> list[tuple[str, int]]:
    return [(row["label"], row["exit"]) for row in predictions]


def test_one_text_gives_label_probabilities_exit_and_layer(pipeline: EarlyExitPipeline) -> None:
    found = pipeline(TEXTS[0])
    assert set(found) == {"label", "probabilities", "exit", "layer", "score"}
    assert list(found["probabilities"]) == pipeline.labels == NAMES
    assert found["label"] == max(NAMES, key=found["probabilities"].__getitem__)
    assert pipeline({"sentence": TEXTS[0]})["label"] == found["label"]


def test_every_kind_of_input_gives_the_predictors_results(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]
) -> None:
    data = datasets.Dataset.from_dict({"sentence": TEXTS, "label": LABELS})
    assert len({number for _, number in expected}) > 1, "the test needs texts that leave at different exits"
    for inputs in (TEXTS, data["sentence"], np.array(TEXTS), [{"sentence": text} for text in TEXTS]):
        assert labels_and_exits(pipeline(inputs)) == expected
    assert pipeline([]) == []


def test_a_frame_gives_its_rows_and_not_the_names_of_its_columns(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]
) -> None:
    frame = pd.DataFrame({"number": range(len(TEXTS)), "sentence": TEXTS}, index=range(9, 9 + len(TEXTS)))
    assert labels_and_exits(pipeline(frame)) == expected
    assert len(pipeline.trace(frame, LABELS)) == len(TEXTS)
    with pytest.raises(DataError, match=r"the input lacks \['sentence'\]; found \['number'\]"):
        pipeline(frame[["number"]])


def test_a_generator_is_read_as_predictions_are_taken(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]
) -> None:
    small = load_again(pipeline, batch_size=1)
    read = []

    def endless() -> Any:
        while True:
            for text in TEXTS:
                read.append(text)
                yield text

    stream = small(endless())
    assert labels_and_exits(next(stream) for _ in range(70)) == expected
    assert len(read) < 5000
    stream.close()
    assert labels_and_exits(small(TEXTS)) == expected


def load_again(pipeline: EarlyExitPipeline, **options: Any) -> EarlyExitPipeline:
    return EarlyExitPipeline(pipeline.archive, **options)


def test_it_maps_a_data_set_in_batches(pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]) -> None:
    data = datasets.Dataset.from_dict({"sentence": TEXTS, "other": list(range(70))})
    found = data.map(pipeline, batched=True, batch_size=32)
    assert labels_and_exits(found) == expected and found["other"] == data["other"]
    assert set(found[0]["probabilities"]) == set(NAMES)


def test_threads_and_interleaved_streams_do_not_disturb_each_other(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(pipeline, [TEXTS] * 8):
            assert labels_and_exits(found) == expected
    pairs = list(zip(pipeline(iter(TEXTS)), pipeline(iter(TEXTS)), strict=True))
    assert labels_and_exits(one for one, _ in pairs) == labels_and_exits(other for _, other in pairs) == expected


def test_few_texts_use_the_engine_of_the_call_before_and_no_threads(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = load_again(pipeline)
    fresh(TEXTS[0])
    prepared: list[SteppedNetwork] = []
    prepare = CompiledNetwork.__init__

    def counted(self: CompiledNetwork, network: SteppedNetwork, *rest: Any) -> None:
        prepared.append(network)
        prepare(self, network, *rest)

    monkeypatch.setattr(CompiledNetwork, "__init__", counted)
    monkeypatch.setattr(ReadAhead, "__init__", lambda *args: pytest.fail("a thread was started"))
    found = [fresh(TEXTS[0]), fresh({"sentence": TEXTS[1]}), *fresh(TEXTS[2:3]), *fresh([])]
    assert labels_and_exits(found) == expected[:3] and not prepared
    assert labels_and_exits(fresh(TEXTS[:32])) == expected[:32]
    assert len(prepared) == 1, "of the engine for many texts"
    with pytest.raises(DataError, match="input 1: "):
        fresh([TEXTS[0], 7])
    assert labels_and_exits([fresh(TEXTS[0])]) == expected[:1]


def test_a_pickled_pipeline_predicts_the_same(pipeline: EarlyExitPipeline, expected: list[tuple[str, int]]) -> None:
    assert labels_and_exits(pickle.loads(pickle.dumps(pipeline))(TEXTS)) == expected


def test_another_operating_point_is_a_new_object(
    pipeline: EarlyExitPipeline, expected: list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    fast = pipeline.with_policy("max_probability", speedup=2)
    assert "policy 'max_probability'" in repr(fast)
    caplog.clear()
    pipeline.with_policy("max_probability", speedup=9)
    assert "calibration on " in caplog.text and "9" in caplog.text
    assert fast.policy["type"] == "max_probability" and isinstance(fast.policy["thresholds"], list)
    assert fast.archive.calibration is not None and fast.archive.calibration.report["layer_speedup"] >= 2
    assert pipeline.with_policy(speedup=1.5).policy["type"] == pipeline.policy["type"] == "beem"
    assert {row["exit"] for row in pipeline.with_policy("final")(TEXTS)} == {3}
    assert {row["exit"] for row in pipeline.with_policy({"type": "fixed_exit", "exit": 1})(TEXTS)} == {1}
    assert labels_and_exits(pipeline(TEXTS)) == expected
    with pytest.raises(ConfigurationError, match="'patience', which has no thresholds to fit"):
        pipeline.with_policy("patience", speedup=2)
    with pytest.raises(ConfigurationError, match="policy.type: found 'no_policy'"):
        pipeline.with_policy("no_policy", speedup=2)
    with pytest.raises(ConfigurationError, match="policy: found 5 .*allowed: a name, a file or a block"):
        pipeline.with_policy(5)  # type: ignore[arg-type]


def test_own_data_calibrate_and_trace(pipeline: EarlyExitPipeline) -> None:
    trace = pipeline.trace(TEXTS, LABELS)
    assert len(trace) == 70 and trace.labels.tolist() == [label for _, label in ROWS]
    assert torch.equal(pipeline.trace(TEXTS, np.array([label for _, label in ROWS])).labels, trace.labels)
    assert not bool(pipeline.trace(TEXTS).known.any())
    own = pipeline.calibrate(TEXTS, LABELS, speedup=1.5)
    assert own.archive.calibrated_on == "texts given to calibrate"
    assert own.policy == pipeline.with_policy(speedup=1.5, trace=trace).policy
    with pytest.raises(DataError, match=r"labels: found 2 for 70 texts"):
        pipeline.trace(TEXTS, LABELS[:2])
    with pytest.raises(DataError, match=r"labels\[1\]: found 'bad'"):
        pipeline.trace(TEXTS[:2], ["positive", "bad"])


def test_benchmark_measures_texts(pipeline: EarlyExitPipeline) -> None:
    report = pipeline.benchmark(TEXTS, batch_sizes=[8], engines=["compaction"], repeats=1)
    assert report["counted"]["samples"] == 70 and report["counted"]["layer_speedup"] >= 1
    (line,) = report["summary"]
    assert line.startswith("batch 8, compaction: ") and line.endswith(f"{report['counted']['layer_speedup']:.2f}x")
    assert {(row["engine"], row["case"]) for row in report["measured"]} >= {
        ("transformers", "full_depth"), ("compaction", "exits")
    }  # fmt: skip


def test_a_saved_pipeline_loads_and_has_a_model_card(pipeline: EarlyExitPipeline, tmp_path: Path) -> None:
    fast = pipeline.with_policy("max_probability", speedup=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.th").touch()
    with pytest.raises(ConfigurationError, match="run holds a training run, allowed: another folder"):
        fast.save_pretrained(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="best.th is a file, a directory is needed"):
        fast.save_pretrained(tmp_path / "run" / "best.th")
    fast.save_pretrained(tmp_path / "saved")
    again = EarlyExitPipeline.from_pretrained(tmp_path / "saved")
    assert again.policy == fast.policy and again(TEXTS) == fast(TEXTS)
    assert again.with_policy(speedup=1.5).policy == fast.with_policy(speedup=1.5).policy
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: beem_plugin\n") and "{{" not in card and "{%" not in card
    for part in ("negative, positive", "calibrated on", "train[holdout]", "| all at exit 3 | 1.00x |", '"max_prob'):
        assert part in card
    output = tmp_path / "found.jsonl"
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    run("predict", str(tmp_path / "saved"), str(tmp_path / "in.txt"), "--output-file", str(output))
    assert len(output.read_text().splitlines()) == 70


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub that keeps what it is given."""
    found: dict[str, Any] = {}

    class FakeApi:
        def __init__(self, token: str | None = None) -> None:
            found["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            if repo_id.startswith("other/"):
                raise RuntimeError("403 Forbidden: no right to write\nmore")
            found["created"] = options
            return SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"me/{repo_id}")

        def upload_folder(self, repo_id: str, folder_path: Path, **options: Any) -> Any:
            found["files"] = {str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*")}
            found["uploaded"] = options
            return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    monkeypatch.setattr("beem_plugin.publish.hub_reachable", lambda: True)
    return found


def test_a_pipeline_is_uploaded_with_its_card(
    pipeline: EarlyExitPipeline, trained: Path, hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pipeline.push_to_hub("me/exits", private=True, token="t", revision="v2") == "https://hub/me/exits/commit/1"
    assert hub["token"] == "t" and hub["created"] == {"private": True, "exist_ok": True}
    assert hub["uploaded"] == {"revision": "v2"}
    assert hub["files"] >= {
        "README.md",
        "config.json",
        "weights.safetensors",
        "tokenizer/tokenizer.json",
        "calibration",
    }
    with pytest.raises(DataError, match="^other/exits: not uploaded: 403 Forbidden: no right to write$"):
        pipeline.push_to_hub("other/exits")
    kept = str(tmp_path / "kept")
    done = run("push-to-hf", "-s", str(trained), "-n", "exits", "-o", "us", "-c", "First", "-l", kept)
    assert done.stdout == "https://hub/us/exits/commit/1\n" and hub["uploaded"] == {"commit_message": "First"}
    assert load(kept)(TEXTS[0]) == pipeline(TEXTS[0])
    for wrong in (["-n", "a", str(trained), "-a", "b"], ["-n", "a", "--repo-id", "b", str(trained)], [str(trained)]):
        refused = run("push-to-hf", *wrong, check=False)
        assert refused.returncode == 1 and refused.stderr.startswith("error: push-to-hf: "), refused.stderr
    monkeypatch.setattr("beem_plugin.publish.hub_reachable", lambda: False)
    offline = run("push-to-hf", str(trained), "--repo-id", "me/exits", check=False)
    assert offline.stderr.splitlines()[-1] == "error: me/exits: not uploaded: the hub cannot be reached"


def test_an_archive_of_release_0_1_loads_and_saves(tmp_path: Path) -> None:
    old = load(FIXTURES / "classifier.tar.gz")
    old.save_pretrained(tmp_path)
    assert load(tmp_path)(TEXTS) == old(TEXTS)


def test_wrong_inputs_are_one_line(
    pipeline: EarlyExitPipeline, tiny_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"found 2 text\(s\) an input, allowed: 1 \(sentence\)"):
        pipeline(("a pair", "of texts"))
    for wrong in (None, 3, b"text"):
        with pytest.raises(DataError, match=f"found an input of type {type(wrong).__name__}, allowed: a text"):
            pipeline(wrong)
    with pytest.raises(DataError, match="input 1: sentence: found 3"):
        pipeline(["fine", 3])
    with pytest.raises(DataError, match=r"lacks \['sentence'\]; found \['text'\]"):
        pipeline({"text": ["one"]})
    with pytest.raises(ConfigurationError, match="found a model MultiExitCaptioner"):
        load(FIXTURES / "captioner.tar.gz")
    monkeypatch.setattr("beem_plugin.data.hub.hub_reachable", lambda: False)
    with pytest.raises(
        DataError, match="^owner/name: no such file or folder, and it is not in the hub's cache; [^\n]*$"
    ):
        load("owner/name")
    with pytest.raises(DataError, match="runs/model.tar.gz: no such archive"):
        load("runs/model.tar.gz")
    (tmp_path / "mine.jsonnet").write_text("{}")
    with pytest.raises(DataError, match=r"mine.jsonnet: a config, allowed: a model.tar.gz, .* which `allennlp train "):
        load(tmp_path / "mine.jsonnet")
    with pytest.raises(DataError, match="backbone: a pretrained network, allowed: .* model.encoder.backbone"):
        load(tiny_environment["BEEM_BACKBONE"])
