from __future__ import annotations

import json
import os

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import ABSENT, apply_overrides, diff_configs, load_config, load_config_dict


def write(tmp_path, text, name="config.jsonnet"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_imports_are_relative_to_the_file_and_the_environment_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("BEEM_TEST_EPOCHS", "3")
    (tmp_path / "lib").mkdir()
    write(tmp_path, "{ scale: 0.1 }", "lib/weights.libsonnet")
    path = write(tmp_path, "{ n: std.parseInt(std.extVar('BEEM_TEST_EPOCHS')), w: import 'lib/weights.libsonnet' }")
    assert load_config(path).as_dict(quiet=True) == {"n": 3, "w": {"scale": 0.1}}
    assert load_config_dict(path, ext_vars={"BEEM_TEST_EPOCHS": "5"})["n"] == 5


def test_an_error_in_the_standard_library_is_placed_in_the_config(tmp_path):
    path = write(tmp_path, "{\n  a: std.parseInt('2x') }")
    with pytest.raises(ConfigurationError) as info:
        load_config(path)
    assert str(info.value).startswith(f"{path}:2:6-24: 2x is not a base 10 integer")


def test_a_missing_variable_is_named_with_its_place(tmp_path, monkeypatch):
    monkeypatch.delenv("BEEM_TEST_NONE", raising=False)
    path = write(tmp_path, "{\n  a: std.extVar('BEEM_TEST_NONE') }")
    with pytest.raises(ConfigurationError) as info:
        load_config(path)
    assert str(info.value) == (
        f"{path}:2:6-34: the environment variable BEEM_TEST_NONE is not set, and the config reads it by std.extVar"
    )


def test_bytes_that_are_no_utf8_survive(tmp_path, monkeypatch):
    monkeypatch.setenv("BEEM_TEST_BYTES", os.fsdecode(b"/data/caf\xe9"))
    path = write(tmp_path, "{ dir: std.extVar('BEEM_TEST_BYTES') }")
    assert os.fsencode(load_config(path)["dir"]) == b"/data/caf\xe9"
    archived = write(tmp_path, json.dumps(load_config_dict(path)), "config.json")
    assert os.fsencode(load_config(archived)["dir"]) == b"/data/caf\xe9"


@pytest.mark.parametrize(
    "text, message",
    [
        ("{\n a: 1,, }", ':2:7: unexpected: ","'),
        ("{ a: error 'no good' }", ":1:6-21: no good"),
        ("{ a: {}.b }", ":1:6-10: field does not exist: b"),
        ("import 'none.libsonnet'", ":1:1-24: couldn't open import"),
        ("{\n a: 1 +\n error 'no' }", ":3:2-12: no"),
        ("{ a: { b: 1,\n c: {}.d,\n }.c }", ":2:5-9: field"),
        ("[1]", ": found a list, expected an object"),
    ],
)
def test_errors_name_file_line_and_column(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as info:
        load_config(path)
    assert f"{path}{message}" in str(info.value)
    assert "\n" not in str(info.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="none.jsonnet: no such file"):
        load_config(tmp_path / "none.jsonnet")
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_config(tmp_path)
    with pytest.raises(ConfigurationError, match=r"model.tar.gz: found a .gz file, allowed: .jsonnet, .json or .yaml"):
        load_config(write(tmp_path, "", "model.tar.gz"))


def test_yaml_and_json(tmp_path):
    assert load_config_dict(write(tmp_path, "a: [1, 2.0]\n", "c.yaml")) == {"a": [1, 2.0]}
    assert load_config_dict(write(tmp_path, '{"a": 1}', "c.json")) == {"a": 1}
    assert load_config_dict(write(tmp_path, '{"a": 1, /* why */ }', "d.json")) == {"a": 1}
    with pytest.raises(ConfigurationError, match="e.yaml"):
        load_config_dict(write(tmp_path, "a: [1", "e.yaml"))


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("f.json", '{"a": {"b": 1},\n "a": 2}', "f.json:2:.*duplicate field: a"),
        ("f.yaml", "a: 1\nb: {c: 1, c: 2}\n", "f.yaml: .*duplicate key c"),
    ],
)
def test_a_key_that_stands_twice_is_not_dropped_silently(tmp_path, name, text, message):
    with pytest.raises(ConfigurationError, match=message):
        load_config_dict(write(tmp_path, text, name))


def test_yaml_may_merge_and_overwrite(tmp_path):
    path = write(tmp_path, "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", "m.yaml")
    assert load_config_dict(path)["b"] == {"x": 1, "y": 3}


CONFIG = {"model": {"policy": {"type": "beem", "weights": "cost"}, "layers": [{"a": 1}, {"a": 2}]}, "epochs": 3}


@pytest.mark.parametrize(
    "overrides, path, value",
    [
        ('{"model.policy.type": "final"}', ("model", "policy", "type"), "final"),
        ('{"model.layers.1.a": 1 + 4}', ("model", "layers", 1, "a"), 5),
        ('{"model.policy.min_exit": 2}', ("model", "policy", "min_exit"), 2),
        ('{"model": {"type": "x"}}', ("model",), {"type": "x"}),
        ("{new: std.extVar('BEEM_TEST_VALUE')}", ("new",), "v"),
        ({"epochs": 4}, ("epochs",), 4),
    ],
)
def test_overrides(overrides, path, value, monkeypatch):
    monkeypatch.setenv("BEEM_TEST_VALUE", "v")
    found = apply_overrides(CONFIG, overrides)
    for key in path:
        found = found[key]
    assert found == value
    assert CONFIG["epochs"] == 3 and "new" not in CONFIG


def test_an_unknown_override_names_the_nearest_keys():
    with pytest.raises(ConfigurationError) as info:
        apply_overrides(CONFIG, '{"epochs": 1, "model.polcy.type": "final"}')
    message = str(info.value)
    assert message.startswith("override 'model.polcy.type': the config has no such key, the nearest are: ")
    assert message.split("nearest are: ")[1].startswith("model.policy.type")


@pytest.mark.parametrize("overrides", ["{a: }", "[1]", "'text'"])
def test_overrides_that_are_no_object(overrides):
    with pytest.raises(ConfigurationError, match="^overrides"):
        apply_overrides(CONFIG, overrides)


@pytest.mark.parametrize(
    "a, b, differences",
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}}, [("a.c", 2, 3), ("a.d", ABSENT, 4)]),
        ({"a": {"b": {"c": 1}}}, {}, [("a.b.c", 1, ABSENT)]),
        ({"a": [{"x": 1}]}, {"a": [{"x": 2}, {"y": 3}]}, [("a.0.x", 1, 2), ("a.1.y", ABSENT, 3)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({"a": "cost"}, {"a": {"type": "cost"}}, [("a", "cost", {"type": "cost"})]),
    ],
)
def test_differences(a, b, differences):
    assert diff_configs(a, b) == differences
