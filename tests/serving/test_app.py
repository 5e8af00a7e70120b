"""The server answers what `predict` gives, alone and under load, and refuses what it cannot use in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from beem_plugin import EarlyExitPipeline, load
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import load_config
from beem_plugin.predictors import EarlyExitPredictor, Predictor
from beem_plugin.serving.app import create_app
from beem_plugin.serving.service import ServingOptions
from beem_plugin.training.train import train_model
from tests.tiny_project import CONFIGS, run, sentences

TEXTS = [text for text, _ in sentences(60, seed=7)]


@pytest.fixture(scope="module")
def pipeline(trained: Path) -> EarlyExitPipeline:
    return load(trained)


@pytest.fixture(scope="module")
def client(pipeline: EarlyExitPipeline) -> Iterator[TestClient]:
    options = ServingOptions(max_batch=70, max_body_mb=0.01)
    with TestClient(create_app(pipeline, options), raise_server_exceptions=False) as found:
        yield found


def predicted(trained: Path, tmp_path: Path, texts: list[str]) -> list[dict[str, Any]]:
    """The lines of `allennlp predict`, with probabilities by name."""
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(texts) + "\n")
    run("predict", str(trained), str(source), "--output-file", str(output), "--silent")
    found = []
    for line in output.read_text().splitlines():
        row = json.loads(line)
        del row["sentence"]
        if isinstance(row["probabilities"], list):
            row["probabilities"] = dict(zip(["negative", "positive"], row["probabilities"], strict=True))
        found.append(row)
    return found


def test_answers_are_those_of_predict_to_the_last_digit(client: TestClient, trained: Path, tmp_path: Path) -> None:
    one = client.post("/predict", json={"sentence": TEXTS[0]})
    assert one.status_code == 200 and [one.json()] == predicted(trained, tmp_path, TEXTS[:1])
    assert set(one.json()) == {"label", "probabilities", "exit", "layer", "score"}
    texts = TEXTS[:32]  # one chunk of `predict`
    expected = predicted(trained, tmp_path, texts)
    assert len({row["exit"] for row in expected}) > 1
    mixed = [text if number % 2 else {"sentence": text, "id": number} for number, text in enumerate(texts)]
    for inputs in (texts, [[text] for text in texts], mixed):
        found = client.post("/predict", json={"inputs": inputs}).json()["predictions"]
        assert [row.pop("id", number) for number, row in enumerate(found)] == list(range(32))
        assert found == expected


def test_requests_at_the_same_time_do_not_mix(client: TestClient, pipeline: EarlyExitPipeline) -> None:
    expected = pipeline(TEXTS)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda text: client.post("/predict", json={"sentence": text}).json(), TEXTS))
    for found, wanted in zip(answers, expected, strict=True):
        assert (found["label"], found["exit"], found["layer"]) == (wanted["label"], wanted["exit"], wanted["layer"])
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)


def test_metrics_count_exits_and_saved_layers(pipeline: EarlyExitPipeline) -> None:
    with TestClient(create_app(pipeline)) as client:
        exits = [row["exit"] for row in client.post("/predict", json={"inputs": TEXTS}).json()["predictions"]]
        client.post("/predict", content=b"{")
        client.get("/no/such/page")
        families = text_string_to_metric_families(client.get("/metrics").text)
        values = {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }
    for number in (1, 2, 3):
        assert values["beem_exits_total", str(number), str(number)] == exits.count(number)
    assert values["beem_layers_computed_total",] == sum(exits)
    assert values["beem_layers_saved_total",] == 3 * len(exits) - sum(exits)
    assert values["beem_requests_total", "/predict", "200"] == values["beem_requests_total", "/predict", "400"] == 1
    assert values["beem_requests_total", "other", "404"] == 1
    assert values["beem_request_seconds_count", "/predict"] == 2
    assert values["beem_batch_inputs_sum",] == 60 and values["beem_queued_inputs",] == 0


@pytest.mark.parametrize(
    ("content", "status", "detail"),
    [
        (b'{"sentence": ', 400, "body: not valid JSON: Expecting value at column 14"),
        (b"\xff\xfe", 400, "body: not UTF-8 text"),
        (b'"text"', 422, 'body: found a string, allowed: an object with sentence, or {"inputs": [...]}'),
        (b'{"text": "a film"}', 422, "the input lacks ['sentence']; found ['text']"),
        (b'{"sentence": 3}', 422, "sentence: found 3, allowed: a text"),
        (b'{"inputs": ["a", 3]}', 422, "inputs[1]: sentence: found 3, allowed: a text"),
        (b'{"inputs": [["a", "b"]]}', 422, "inputs[0]: found 2 text(s) an input, allowed: 1 (sentence)"),
        (b'{"inputs": "a film"}', 422, "inputs: found a string, allowed: a list of inputs"),
        (b'{"inputs": []}', 422, "inputs: found an empty list, allowed: one input or more"),
        (json.dumps({"inputs": ["a"] * 71}).encode(), 413, "inputs: found 71, allowed: up to 70 a request"),
        (b'{"sentence": "' + b"a" * 20000 + b'"}', 413, "body: found more than 10485 bytes"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(client: TestClient, content: bytes, status: int, detail: str) -> None:
    found = client.post("/predict", content=content)
    assert found.status_code == status
    assert found.json()["detail"].startswith(detail) and "\n" not in found.json()["detail"]
    assert client.post("/predict", json={"sentence": TEXTS[0]}).status_code == 200


def test_a_body_without_a_length_is_not_read_beyond_the_limit(client: TestClient) -> None:
    read = 0

    def parts() -> Iterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * 1000

    assert client.post("/predict", content=parts()).status_code == 413


def test_a_full_queue_a_late_answer_and_an_error_have_their_own_status(pipeline: EarlyExitPipeline) -> None:
    app = create_app(pipeline, ServingOptions(max_queue=2))
    with TestClient(app) as client:
        found = client.post("/predict", json={"inputs": TEXTS[:3]})
        assert found.status_code == 503 and found.headers["retry-after"] == "1"
        assert found.json()["detail"] == "0 inputs wait, allowed: 2"
    assert TestClient(app).get("/health").status_code == 503, "the worker has ended"
    with TestClient(create_app(pipeline, ServingOptions(timeout_s=1e-6))) as client:
        found = client.post("/predict", json={"sentence": TEXTS[0]})
        assert found.status_code in (408, 504) and "--timeout-s" in found.json()["detail"]


def test_an_error_of_the_server_is_500_and_does_not_end_it(
    pipeline: EarlyExitPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Predictor, instances: Any) -> list[Any]:
        raise RuntimeError("out of order")

    with monkeypatch.context() as changed:
        changed.setattr(EarlyExitPredictor, "predict_batch_instance", fails)
        app = create_app(pipeline)
        with TestClient(app, raise_server_exceptions=False) as client:
            found = client.post("/predict", json={"sentence": TEXTS[0]})
            assert found.status_code == 500 and found.json() == {
                "detail": "RuntimeError in the server; its log says more"
            }
            assert client.get("/health").status_code == 200
            assert 'beem_requests_total{path="/predict",status="500"} 1.0' in client.get("/metrics").text


def test_health_and_openapi(client: TestClient, pipeline: EarlyExitPipeline) -> None:
    health = client.get("/health").json()
    assert health["status"] == "ok" and health["inputs"] == ["sentence"] and health["exit_layers"] == [1, 2, 3]
    assert health["labels"] == ["negative", "positive"] and health["exit_policy"] == pipeline.policy
    schema = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    examples = schema["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        assert client.post("/predict", json=example["value"]).status_code == 200
    assert set(schema["responses"]) == {"200", "400", "408", "413", "422", "503", "504"}


def test_the_interface_is_described_without_a_network(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "POST /predict" in page.text and "GET /health" in page.text and "504: No answer within" in page.text
    assert "http://" not in page.text and "https://" not in page.text and client.get("/redoc").status_code == 404


def test_the_page_asks_for_what_each_exit_gives(client: TestClient, pipeline: EarlyExitPipeline) -> None:
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    data = json.loads(page.text.split('id="data">')[1].split("</script>")[0])
    assert data["texts"] == [] and data["model"]["columns"] == ["sentence"] and 'id="column-0"' in page.text
    for text in TEXTS[:5]:
        found = client.post("/explain", json={"sentence": text}).json()
        expected, exit = pipeline(text), found["leaves"][data["current"]]
        assert exit == expected["exit"] and len(found["exits"]) == 3
        assert found["exits"][exit - 1]["score"] == pytest.approx(expected["score"], abs=1e-5)
    assert client.post("/explain", json={"text": "a"}).status_code == 422


def test_pairs_and_values(tiny_environment: dict[str, str], tmp_path: Path) -> None:
    overrides = {"trainer.num_epochs": 1, "trainer.cuda_device": -1, "dataset_reader.holdout_fraction": 0.3}
    train_model(load_config(CONFIGS / "stsb_berxit.jsonnet", overrides, ext_vars=tiny_environment), tmp_path / "run")
    pairs = load(tmp_path / "run")
    record = {"sentence1": "a good film", "sentence2": "it is good"}
    with TestClient(create_app(pairs)) as client:
        found = client.post("/predict", json=record).json()
        assert found == pairs(record) and isinstance(found["value"], float)
        lists = client.post("/predict", json={"inputs": [list(record.values())]}).json()
        assert lists == {"predictions": [found]}
        body = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
        for example in body["content"]["application/json"]["examples"].values():
            assert client.post("/predict", json=example["value"]).status_code == 200
        explained = client.post("/explain", json=record).json()
        assert explained["exits"][0]["confidence"] is None and explained["texts"] == list(record.values())
        assert found["value"] == pytest.approx(
            explained["answers"][
                json.loads(client.get("/").text.split('id="data">')[1].split("</script>")[0])["current"]
            ],
            abs=1e-5,
        )


def test_options_are_checked() -> None:
    for options, message in (
        ({"max_batch": 0}, "max_batch: found 0, allowed: 1 or more"),
        ({"timeout_s": float("inf")}, "timeout_s: found inf"),
        ({"latency_budget_ms": -1.0}, "latency_budget_ms: found -1.0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            ServingOptions(**options)  # type: ignore[arg-type]
