from __future__ import annotations

import logging
import sys

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.plugins import discover_plugins, import_package, import_plugins


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def package(tmp_path, name, **modules):
    for module, text in modules.items():
        path = tmp_path / name / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_submodules_are_imported_except_tests_and_private_ones(tmp_path):
    package(tmp_path, "pack_one", __init__="", a="", _private="1/0", test_a="1/0")
    import_package("pack-one")
    assert "pack_one.a" in sys.modules


def test_a_file_that_is_a_module(tmp_path):
    (tmp_path / "module_one.py").write_text("")
    import_package("module_one.py")
    assert "module_one" in sys.modules


def test_a_package_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match=f"no module named 'not_there' is installed or found in {tmp_path}"):
        import_package("not-there")


@pytest.mark.parametrize("text", ["import not_there_either", "1/0", "def ("])
def test_a_broken_package_says_where(tmp_path, text):
    package(tmp_path, "pack_two", __init__="", broken=text)
    with pytest.raises(ConfigurationError, match="package pack_two.broken: cannot be imported: ") as info:
        import_package("pack_two")
    assert "broken.py" in str(info.value) and "\n" not in str(info.value)


def test_not_a_name():
    with pytest.raises(ConfigurationError, match="expected the name of a package"):
        import_package("no name!")


def test_the_working_directory_hides_no_installed_library(tmp_path):
    (tmp_path / "colorsys.py").write_text("1/0")
    sys.modules.pop("colorsys", None)
    import_package("colorsys")
    assert not sys.modules["colorsys"].__file__.startswith(str(tmp_path))


def test_plugins_are_loaded_and_failures_logged(tmp_path, caplog):
    (tmp_path / "good_plugin.py").write_text("")
    (tmp_path / "bad_plugin.py").write_text("1/0")
    (tmp_path / ".allennlp_plugins").write_text("# ours\n\nbad_plugin\ngood_plugin  # fine\n")
    (tmp_path / "home" / ".allennlp").mkdir(parents=True)
    (tmp_path / "home" / ".allennlp" / "plugins").write_text("good_plugin\nmissing_plugin\n")
    assert list(discover_plugins()) == ["bad_plugin", "good_plugin", "missing_plugin"]
    with caplog.at_level(logging.ERROR):
        import_plugins()
    assert "good_plugin" in sys.modules
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "ZeroDivisionError" in caplog.text and "missing_plugin" in caplog.text
