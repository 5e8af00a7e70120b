"""`scripts/train_captions` on a few coloured squares: a language model, then several methods from it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.params import load_config
from beem_plugin.comparison.caption_scores import compared_rows, read_caption_runs
from tests.ablation_in_process import train_in_process
from tests.tiny_captions import captioned_colours
from tests.tiny_project import CONFIGS, ROOT, load_script

DECODER = {
    "model.decoder.backbone.decoder.n_embd": 16,
    "model.decoder.backbone.decoder.n_head": 2,
    "model.decoder.backbone.decoder.n_layer": 4,
    "trainer.num_epochs": 1,
}
IMAGES = {
    "dataset_reader.image_processor.size": 28,
    "dataset_reader.image_processor.crop_size": None,
    "dataset_reader.holdout_fraction": 0.3,
    "model.decoding.max_length": 6,
}
METHODS = ["reduced", "deebert", "mue", "beem"]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    captioned_colours(folder / "data", {"train": 30, "val": 4, "test": 5})
    torch.manual_seed(0)
    shape = Dinov2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28)
    Dinov2Model(shape).save_pretrained(folder / "encoder")
    return {"FLICKR8K_FILE": str(folder / "data" / "dataset_colours.json"), "IMAGE_ENCODER": str(folder / "encoder")}


def test_methods_are_trained_from_one_language_model_and_captioned(
    tmp_path: Path,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "runs"
    for name, value in {**variables, "CAPTION_LM": ""}.items():  # the script sets the last
        monkeypatch.setenv(name, value)
    script = load_script("train_captions")
    train_in_process(monkeypatch)
    command = ["train_captions", "--set", "flickr8k_large", "--output", str(output)]
    language_model = {**DECODER, "dataset_reader.tokenizer.vocab_size": 280}
    options = ["--overrides", json.dumps({**DECODER, **IMAGES}), "--lm-overrides", json.dumps(language_model)]
    options += ["--layers", "3", "--keep-runs", "beem"]

    def run(*methods: str) -> int:
        monkeypatch.setattr(sys, "argv", [*command, *options, "--methods", *methods])
        return script["main"]()

    assert run(*METHODS) == 0, capsys.readouterr().err
    assert "language model" in capsys.readouterr().out and (output / "lm" / "tokenizer").is_dir()
    runs = {run["method"]: run for run in read_caption_runs(output)}
    assert set(runs) == set(METHODS) and runs["reduced"]["exit_layers"] == [3]
    assert [len(run["references"]) for run in runs.values()] == [5] * 4
    assert [row["name"] for row in runs["beem"]["rows"]][:3] == ["full depth", "BEEM-A", "BEEM-C"]
    # Images leave their encoder early, too, and not at full depth.
    full, left = runs["mue"]["rows"][:2]
    assert full["layer_speedup"] == 1.0 and "encoder_layer_speedup" in left and "encoder_layer_speedup" not in full
    assert len(ExitTrace.load(output / "beem" / "0" / "calibration.npz")) > 0
    assert (output / "beem" / "0" / "model.tar.gz").exists() and not (output / "mue" / "0" / "model.tar.gz").exists()
    assert compared_rows(list(runs.values()), ["cider"])
    # What is done is kept; what fails says why, and the others go on.
    before = (output / "beem" / "0" / "captions.json").stat().st_mtime_ns
    options += ["--overrides", json.dumps({**DECODER, **IMAGES, "trainer.stages.0.num_epochs": 0})]
    assert run("deebert", "beem", "capeen", "final") == 1
    assert re.search("^capeen 0: .*num_epochs: found 0", capsys.readouterr().err, re.MULTILINE)
    assert "num_epochs" in (output / "capeen" / "0" / "seed_1.log").read_text()
    assert (output / "beem" / "0" / "captions.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("method", ["final", "deebert", "capeen"])
def test_the_image_encoder_stays_as_it_came_in_every_stage(method: str, tmp_path: Path) -> None:
    path = tmp_path / "config.jsonnet"
    path.write_text(
        f"local captions = import '{CONFIGS}/lib/captions.libsonnet';\n"
        f"captions.with_images_as_they_come(captions.flickr8k_large + captions.{method})"
    )
    trainer = load_config(path)["trainer"].as_dict()
    for stage in trainer.get("stages", [trainer]):
        assert "transformer_model\\.encoder\\." in stage["no_grad"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--overrides", "{broken"], "--overrides: not JSON"),
        (["--lm-overrides", "[1]"], "--lm-overrides: found [1], allowed: a JSON object"),
    ],
)
def test_wrong_overrides_are_refused_in_one_line(
    tmp_path: Path, given: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_captions", "--set", "shapes", "--output", str(tmp_path), *given])
    with pytest.raises(SystemExit) as stop:
        load_script("train_captions")["main"]()
    assert words in str(stop.value) and "\n" not in str(stop.value)


def test_an_unknown_key_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another folder, where nothing but the script itself says where the package is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).resolve() not in (ROOT, tmp_path)])
    given = ["--output", str(tmp_path), "--overrides", '{"model.decodng": 1}']
    monkeypatch.setattr(sys, "argv", ["train_captions", "--set", "shapes", "--methods", "final", *given])
    script = load_script("train_captions")
    assert sys.path[0] == str(ROOT)
    train_in_process(monkeypatch)
    assert script["main"]() == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "final 0: " in line and "model.decodng" in line
