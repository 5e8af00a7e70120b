from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
import transformers

from beem_plugin.archival import archive_model, load_archive, with_calibration
from beem_plugin.calibration.replay import replay
from beem_plugin.common.archive_files import save_state
from beem_plugin.common.errors import ConfigurationError, DataError, NotCalibratedError
from beem_plugin.exits.policies import Beem, Patience
from beem_plugin.models.saved_weights import InitialWeights, load_weights
from tests import tiny_captioner


def test_archive_holds_all_that_prediction_needs(trained: Path) -> None:
    with tarfile.open(trained / "model.tar.gz") as archive:
        names = archive.getnames()
    for name in (
        "config.json",
        "meta.json",
        "weights.safetensors",
        "vocabulary/labels.txt",
        "tokenizer/tokenizer.json",
        "backbone/config.json",
        "calibration/policy.json",
        "calibration/report.json",
        "calibration/trace.npz",
    ):
        assert name in names


def test_archive_works_where_the_backbone_is_gone(trained: Path, tmp_path: Path) -> None:
    copy = shutil.copy(trained / "model.tar.gz", tmp_path)
    config = json.loads((trained / "config.json").read_text())
    moved = Path(config["model"]["encoder"]["backbone"]["model_name"])
    hidden = moved.rename(moved.with_name("hidden"))
    try:
        archive = load_archive(copy)
    finally:
        hidden.rename(moved)
    from_directory = load_archive(trained)
    batch = {"input_ids": torch.tensor([[2, 5, 9, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    assert torch.equal(archive.model(**batch)["logits"], from_directory.model(**batch)["logits"])
    assert archive.validation_dataset_reader.text_to_instance(sentence="the film is good").encoding["input_ids"]


def test_the_calibrated_policy_comes_back(trained: Path) -> None:
    archive = load_archive(trained / "model.tar.gz")
    assert archive.calibration is not None and archive.calibration.trace is not None
    policy = archive.model.exit_policy
    assert isinstance(policy, Beem) and policy.is_calibrated
    assert policy.to_config() == archive.calibration.policy
    report = archive.calibration.report
    assert report["source"] == "train[holdout]" and report["samples"] == len(archive.calibration.trace)
    histogram = torch.bincount(replay(policy, archive.calibration.trace).exits - 1, minlength=3)
    assert histogram.tolist() == report["exit_histogram"]


def test_another_policy_is_calibrated_on_the_archives_trace(trained: Path) -> None:
    overrides = (
        '{"model.exit_policy": {"type": "max_probability", "thresholds": {"type": "error_rate", "grid": "observed"}}}'
    )
    archive = load_archive(trained / "model.tar.gz", overrides=overrides)
    assert archive.model.exit_policy.is_calibrated
    assert archive.calibration is not None and archive.calibration.trace is not None
    fresh = type(archive.model.exit_policy)(thresholds=archive.model.exit_policy.strategy)
    fresh.calibrate(archive.calibration.trace)
    assert fresh.values == archive.model.exit_policy.values


def test_a_policy_without_open_numbers_needs_no_calibration(trained: Path) -> None:
    archive = load_archive(trained, overrides='{"model.exit_policy": {"type": "patience", "patience": 1}}')
    assert isinstance(archive.model.exit_policy, Patience)


def test_an_uncalibrated_policy_refuses_and_says_how(trained: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(trained, bare, ignore=shutil.ignore_patterns("calibration", "*.tar.gz"))
    archive = load_archive(bare)
    with pytest.raises(NotCalibratedError, match="calibrate_exits"):
        archive.model.exit_policy.check_calibrated()


def test_with_calibration_replaces_policy_and_config(trained: Path, tmp_path: Path) -> None:
    overrides = '{"model.exit_policy": {"type": "max_probability", "thresholds": 0.8}}'
    archive = load_archive(trained, overrides=overrides)
    assert archive.calibration is not None and archive.calibration.trace is not None
    report = archive.model.exit_policy.calibrate(archive.calibration.trace)
    changed = archive.calibration
    changed.policy, changed.config = report.policy, {"type": "max_probability", "thresholds": 0.8}
    changed.report = report.to_json()
    new = with_calibration(trained, tmp_path / "new.tar.gz", changed)  # of a run its archive
    again = load_archive(new)
    assert again.model.exit_policy.to_config() == report.policy
    assert again.config["model"]["exit_policy"]["type"] == "max_probability"


def test_wrong_archives_are_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such archive"):
        load_archive(tmp_path / "missing.tar.gz")
    damaged = tmp_path / "damaged.tar.gz"
    damaged.write_bytes((trained / "model.tar.gz").read_bytes()[:5000])
    with pytest.raises(DataError, match="damaged.tar.gz"):
        load_archive(damaged)
    with pytest.raises(DataError, match="config.json"):
        load_archive(tmp_path)
    with pytest.raises(DataError, match="no such weights file"):
        load_archive(trained, weights_file=tmp_path / "w.th")
    for device in (99, -5):
        with pytest.raises(ConfigurationError, match=f"--cuda-device: found {device}, allowed: -1"):
            load_archive(trained, cuda_device=device)


def test_weights_that_do_not_fit_are_named(trained: Path, tmp_path: Path) -> None:
    state = torch.load(trained / "best.th", weights_only=True)
    name = next(iter(state))
    torch.save({key: value for key, value in state.items() if key != name}, tmp_path / "w.th")
    with pytest.raises(DataError, match=name):
        load_archive(trained, weights_file=tmp_path / "w.th")


def test_a_file_that_holds_no_weights_is_named(trained: Path, tmp_path: Path) -> None:
    for name in ("w.th", "w.safetensors"):
        (tmp_path / name).write_text("text,label\n")
        with pytest.raises(DataError, match="not a weights file"):
            load_archive(trained, weights_file=tmp_path / name)


def test_shared_tensors_survive_safetensors(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    save_state(model.state_dict(), tmp_path / "w.safetensors")
    other = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    load_weights(other, tmp_path / "w.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_archiving_before_an_epoch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="best.th"):
        archive_model(tmp_path)


# How DINOv2's parameters are called in older and in newer releases of transformers.
RENAMED = [
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.output.dense.", ".attention.o_proj."),
]


def under_other_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict of the release that is installed, as one of the other kind writes it."""
    is_old = any(RENAMED[0][0] in name for name in state)
    changed = {}
    for name, value in state.items():
        for old, new in RENAMED:
            name = name.replace(old, new) if is_old else name.replace(new, old)
        changed[name] = value
    assert changed.keys() != state.keys()
    return changed


def test_weights_of_another_release_of_transformers_load(tmp_path: Path) -> None:
    encoder = {key: value for key, value in tiny_captioner.VIT.items() if key != "intermediate_size"}
    parts = {"encoder": {**encoder, "model_type": "dinov2"}, "decoder": tiny_captioner.GPT2}
    model, other = (tiny_captioner.captioner(seed, decoder={"backbone": parts}, exit_policy="final") for seed in (0, 1))
    state = under_other_names(model.state_dict())
    save_state(state, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    third = tiny_captioner.captioner(2, decoder={"backbone": parts}, exit_policy="final")
    copied = InitialWeights(str(tmp_path / "w.safetensors"), exclude=[]).copy_into(third)
    assert set(copied) == set(model.state_dict())


def test_what_does_not_fit_is_named_with_the_releases_of_transformers(tmp_path: Path) -> None:
    model = tiny_captioner.captioner(exit_policy="final")
    state = model.state_dict()
    name = next(key for key in state if key.endswith(".attention.q_proj.weight"))
    other = "decoder.unheard_of"
    torch.save({(other if key == name else key): value for key, value in state.items()}, tmp_path / "w.th")
    with pytest.raises(DataError) as error:
        load_weights(model, tmp_path / "w.th", made_with="5.3.1")
    for part in (f"missing: {name}", f"unexpected: {other}", "transformers 5.3.1", transformers.__version__):
        assert part in str(error.value)
    torch.save({key: value[:1] if key == name else value for key, value in state.items()}, tmp_path / "w.th")
    with pytest.raises(DataError, match=r"of another shape: \S+ \[1, 24\] for \[24, 24\] .*unknown version"):
        load_weights(model, tmp_path / "w.th")


def test_the_archive_says_which_transformers_made_it(trained: Path) -> None:
    assert load_archive(trained).meta["transformers"] == transformers.__version__
