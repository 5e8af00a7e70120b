from __future__ import annotations

import pytest
from allennlp_light.modules.seq2vec_encoders import Seq2VecEncoder
from allennlp_light.nn.activations import Activation

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Params, Registrable


class Animal(Registrable):
    default_implementation = "cat"


@Animal.register("cat")
class Cat(Animal):
    def __init__(self, lives: int = 9, name: str = "") -> None:
        self.lives, self.name = lives, name


@pytest.fixture
def unrelated_script(tmp_path, monkeypatch):
    """A script in the working directory that leaves a mark when it is run."""
    mark = tmp_path / "mark"
    (tmp_path / "unrelated.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return mark


@pytest.mark.parametrize("base", [Animal, Seq2VecEncoder, Activation])
def test_an_unknown_name_runs_no_code_from_the_working_directory(base, unrelated_script):
    with pytest.raises(ConfigurationError, match="allowed: "):
        base.from_params(Params({"type": "no_such_name"}))
    with pytest.raises(Exception, match="no_such_name"):
        base.by_name("no_such_name")
    assert not unrelated_script.exists()


def test_the_default_implementation_is_used_without_a_type():
    assert isinstance(Animal.from_params(Params({"lives": 7})), Cat)
    assert isinstance(Animal.from_params({}), Cat)


def test_a_name_is_registered_once():
    with pytest.raises(ConfigurationError, match="already registered"):
        Animal.register("cat")(type("Other", (Animal,), {}))


def test_lazy_without_a_config():
    cat = Lazy(Cat, constructor_extras={"lives": 3}).construct(name="Tom")
    assert (cat.lives, cat.name) == (3, "Tom")


def test_lazy_can_be_built_several_times():
    lazy = Lazy(Animal, params=Params({"type": "cat", "lives": 2}))
    assert [lazy.construct(name=name).lives for name in "ab"] == [2, 2]


def test_lazy_builds_plain_classes_too():
    class Plain:
        def __init__(self, a: int, b: int) -> None:
            self.sum = a + b

    assert Lazy(Plain, params=Params({"a": 1})).construct(b=2).sum == 3
