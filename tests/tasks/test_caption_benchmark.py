"""`allennlp benchmark` of a captioning model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.evaluation.benchmark import benchmark_table, run_benchmark
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.caption_decoding import Images, caption_cases
from beem_plugin.tasks.captioning import Captioning
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import tiny
from tests.tiny_captioner import captioner, images, policy
from tests.tiny_project import CONFIGS, run


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny captioner on shapes, whose images may leave the encoder early too."""
    config = tiny(CONFIGS / "shapes_beem.jsonnet")
    config["model"]["decoding"]["image_exit"] = {"threshold": -1}
    config["model"]["exit_policy"] = {"type": "fixed_exit", "exit": 1}
    folder = tmp_path_factory.mktemp("captions") / "run"
    train_model(Params(config), folder)
    return folder


def test_command(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    result = run(
        *("benchmark", str(archive), "test", "--batch-sizes", "1,4", "--repeats", "2", "--max-instances", "6"),
        *("--skipped-blocks", "propagate,recompute", "--max-length", "5", "--output-file", str(output)),
    )
    assert "layer speed-up 3.000x by words, of the image encoder 3.000x" in result.stdout
    report = json.loads(output.read_text())
    counted = report["counted"]
    assert counted["samples"] == 6 and sum(counted["exit_histogram"]) == counted["words"]
    assert counted["layer_speedup"] == counted["encoder_layer_speedup"] == 3.0 and counted["mac_speedup"] > 1
    rows = {(row["engine"], row["case"], row["batch_size"]): row for row in report["measured"]}
    engines = {"decoder", "transformers", "decoder, propagate", "decoder, recompute"}
    assert {(engine, size) for engine, _, size in rows} == {(engine, size) for engine in engines for size in (1, 4)}
    for row in rows.values():
        assert row["words_per_second"] > 0 and row["images_per_second"] > 0 and row["latency_ms_p99"] > 0
        assert len(row["seconds_all"]) == 2 and row["measured_speedup_over_transformers"] > 0
    assert rows["transformers", "full_depth", 4]["same_as_full_depth"] == 1.0
    assert rows["decoder", "full_depth", 4]["measured_speedup"] == 1.0
    assert rows["decoder, recompute", "exits", 1]["measured_over_layer_speedup"] > 0
    with (tmp_path / "speed.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def test_options_of_the_other_kind_of_model_are_named(archive: Path, trained: Path) -> None:
    for folder, flag, value in ((archive, "--engines", "single"), (trained, "--num-beams", "2")):
        refused = run("benchmark", str(folder), "test", flag, value, check=False)
        assert refused.returncode == 1 and f"{flag}: " in refused.stderr
    refused = run("benchmark", str(archive), "test", "--skipped-blocks", "forget", check=False)
    assert refused.returncode == 1 and "--skipped-blocks: found 'forget'" in refused.stderr


def measured(model: MultiExitCaptioner, rule: ExitPolicy, batches: Images, **options: Any) -> dict[str, Any]:
    return run_benchmark([(3, caption_cases(model, rule, batches, **options))], 1, model.device)


def test_beams_are_measured_without_comparing_multiply_accumulates(capsys: pytest.CaptureFixture[str]) -> None:
    model = captioner(decoding={"max_length": 6, "skipped_blocks": "copy"})
    report = measured(model, policy(type="fixed_exit", exit=3), [{"pixel_values": images(2)}], num_beams=3)
    assert [row["engine"] for row in report["measured"]] == ["decoder", "transformers", "decoder, copy"]
    assert report["measured"][1]["same_as_full_depth"] == 1.0
    assert "mac_speedup" not in report["counted"] and report["counted"]["layer_speedup"] == 2.0
    note = Captioning().benchmark_note(report["counted"])
    benchmark_table({"device": "cpu", "threads": 1, "available_samples": 2, **report}, note).print(150)
    assert "multiply-accumulates not compared with beams" in " ".join(capsys.readouterr().out.split())


def test_every_case_has_its_own_figures() -> None:
    model = captioner(decoding={"max_length": 8})
    batches = [{"pixel_values": images(3)}, {"pixel_values": images(2)}]
    kinds = ("propagate", "recompute")
    half, never = (
        {row["engine"]: row for row in measured(model, rule, batches, skipped_blocks=kinds)["measured"]}
        for rule in (policy(type="fixed_exit", exit=3), policy(type="patience", patience=6))
    )
    assert list(half) == ["decoder", "transformers", "decoder, propagate", "decoder, recompute"]
    assert half["decoder"]["measured_speedup"] == half["decoder"]["mac_speedup"] == 1.0
    assert half["decoder, propagate"]["layer_speedup"] == pytest.approx(2.0)
    assert half["decoder, propagate"]["mac_speedup"] < half["decoder, propagate"]["decoder_mac_speedup"]
    assert never["decoder, recompute"]["same_as_full_depth"] == 1.0
    # Heads are computed at every exit and no sample exits: slower than full depth.
    assert never["decoder, recompute"]["layer_speedup"] == 1.0 and never["decoder, recompute"]["mac_speedup"] < 1
    assert all(row["seconds"] > 0 for rows in (half, never) for row in rows.values())


def test_an_unknown_way_to_fill_in_skipped_blocks_is_named() -> None:
    with pytest.raises(ConfigurationError, match="--skipped-blocks: found 'no'"):
        caption_cases(captioner(), policy(type="final"), [], ["no"])
