from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from allennlp_light.modules import FeedForward
from allennlp_light.modules.seq2vec_encoders import Seq2VecEncoder
from allennlp_light.nn.initializers import InitializerApplicator

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import FromParams, Lazy, Params, Registrable, construct


class Weights(Registrable):
    default_implementation = "cost"


@Weights.register("cost")
class CostWeights(Weights):
    def __init__(self, scale: float = 0.1) -> None:
        self.scale = scale


@Weights.register("fixed")
class FixedWeights(Weights):
    def __init__(self, values: list[float]) -> None:
        if not values:
            raise ConfigurationError("values: found none, expected at least one")
        self.values = values


class Policy(Registrable):
    pass


@Policy.register("beem")
class Beem(Policy):
    def __init__(
        self,
        weights: Weights | list[float] | None = None,
        thresholds: float | Literal["never"] | list[float] | None = None,
        min_exit: int = 1,
        on_disagreement: Literal["restart", "zero"] = "restart",
        strict: bool = False,
    ) -> None:
        self.weights, self.thresholds, self.min_exit = weights, thresholds, min_exit
        self.on_disagreement, self.strict = on_disagreement, strict


@Policy.register("patience")
class Patience(Policy):
    def __init__(self, patience: int, **kwargs: Any) -> None:
        self.patience, self.further = patience, kwargs


class Optimizer(Registrable):
    pass


@Optimizer.register("adam")
class Adam(Optimizer):
    built = 0

    def __init__(self, parameters: list[Any], lr: float = 1e-3) -> None:
        Adam.built += 1
        self.parameters, self.lr = parameters, lr


class Model(torch.nn.Module, Registrable):
    def __init__(self, vocab: Any, name: str = "m") -> None:
        super().__init__()
        self.vocab, self.name = vocab, name


@Model.register("classifier")
class Classifier(Model):
    def __init__(self, exit_policy: Policy, head: FeedForward | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.exit_policy, self.head = exit_policy, head


class Run(FromParams):
    """Like a training run: the model is lazy, as it needs the vocabulary."""

    def __init__(
        self,
        model: Lazy[Model],
        optimizer: Lazy[Optimizer] | None = None,
        policies: dict[str, Policy] | None = None,
        random_seed: int = 1,
        data_path: Path | None = None,
    ) -> None:
        self.model = model.construct(vocab="the vocabulary", further="is dropped")
        self.optimizer = optimizer.construct(parameters=[1, 2]) if optimizer else None
        self.policies, self.random_seed, self.data_path = policies, random_seed, data_path


def run(**changes: Any) -> Run:
    config = {"model": {"type": "classifier", "exit_policy": {"type": "beem"}}, **changes}
    return Run.from_params(Params(config))


def error_of(**changes: Any) -> str:
    with pytest.raises(ConfigurationError) as info:
        run(**changes)
    message = str(info.value)
    assert "\n" not in message
    return message


def policy(**block: Any) -> Any:
    return Policy.from_params(Params(block))


def policy_error(**block: Any) -> str:
    with pytest.raises(ConfigurationError) as info:
        Policy.from_params(Params(block, history="model.exit_policy."))
    assert "\n" not in str(info.value)
    return str(info.value)


def test_a_whole_config_is_built():
    built = run(
        model={
            "type": "classifier",
            "name": "x",
            "exit_policy": {"type": "beem", "weights": {"scale": 2}, "thresholds": [0.5, 1]},
            "head": {"input_dim": 4, "num_layers": 1, "hidden_dims": 3, "activations": "relu"},
        },
        optimizer={"type": "adam", "lr": 0.5},
        policies={"a": "beem", "b": {"type": "patience", "patience": 3}},
        data_path="somewhere",
    )
    assert (built.model.vocab, built.model.name) == ("the vocabulary", "x")
    assert built.model.exit_policy.weights.scale == 2.0
    assert built.model.exit_policy.thresholds == [0.5, 1.0]
    assert built.model.head(torch.zeros(2, 4)).shape == (2, 3)
    assert (built.optimizer.parameters, built.optimizer.lr) == ([1, 2], 0.5)
    assert isinstance(built.policies["a"], Beem) and built.policies["b"].patience == 3
    assert built.data_path == Path("somewhere")


def test_the_config_is_not_consumed():
    params = Params({"model": {"type": "classifier", "exit_policy": "beem"}})
    before = params.duplicate().as_dict(quiet=True)
    Run.from_params(params)
    assert params.as_dict(quiet=True) == before


def test_an_unknown_key_deep_inside_a_lazy_block_is_found_before_anything_is_built():
    Adam.built = 0
    message = error_of(
        optimizer="adam", model={"type": "classifier", "exit_policy": {"type": "beem", "weigths": "cost"}}
    )
    assert message.startswith("model.exit_policy.weigths: unknown key of beem, allowed: weights, ")
    assert Adam.built == 0


def test_an_unknown_key_at_the_top():
    assert error_of(random_sed=3).startswith("random_sed: unknown key of Run, allowed: random_seed, ")


def test_what_the_program_gives_is_not_among_the_allowed_keys():
    with pytest.raises(ConfigurationError) as info:
        Model.from_params(Params({"type": "classifier", "exit_policy": "beem", "nme": 1}), vocab=1)
    assert str(info.value) == "nme: unknown key of classifier, allowed: name, exit_policy, head"


def test_an_unknown_type_names_the_nearest_first():
    assert policy_error(type="bem").startswith("model.exit_policy.type: found 'bem', allowed: beem, patience")


def test_an_unknown_type_given_as_a_string():
    message = error_of(model={"type": "classifier", "exit_policy": "patiense"})
    assert message.startswith("model.exit_policy: found 'patiense', allowed: patience, beem")


def test_a_missing_type():
    assert policy_error(patience=3) == "model.exit_policy.type: missing, allowed: beem, patience"


def test_the_type_ref_is_reserved():
    assert "`ref` is a reserved name" in policy_error(type="ref")
    with pytest.raises(ConfigurationError, match="reserves the name"):
        Policy.register("ref")


def test_a_class_of_the_wrong_kind_by_its_full_name():
    assert "no Policy" in policy_error(type=f"{__name__}.CostWeights")
    assert "cannot be imported" in policy_error(type="no_such.Module")
    assert isinstance(policy(type=f"{__name__}.Beem"), Beem)


def test_a_missing_key():
    assert policy_error(type="patience") == "model.exit_policy.patience: missing, patience needs it: an integer"
    assert error_of(optimizer={}) == "optimizer.type: missing, allowed: adam"


@pytest.mark.parametrize(
    "block, message",
    [
        ({"min_exit": 3.7}, "min_exit: found 3.7 (a number), expected an integer"),
        ({"min_exit": True}, "min_exit: found true (true/false), expected an integer"),
        ({"min_exit": None}, "min_exit: found null, expected an integer"),
        ({"min_exit": {"a": 1}}, 'min_exit: found {"a": 1} (a block), expected an integer'),
        ({"strict": 1}, "strict: found 1 (a number), expected true or false"),
        (
            {"strict": "true"},
            "strict: found 'true' (a string), expected true or false (true is written without",
        ),
        ({"on_disagreement": "zro"}, "on_disagreement: found 'zro' (a string), expected 'zero' or 'restart'"),
        (
            {"thresholds": "nevr"},
            "thresholds: found 'nevr' (a string), expected a number or 'never' or a list of numbers or null",
        ),
        ({"thresholds": [0.5, "x"]}, "thresholds.1: found 'x' (a string), expected a number"),
        ({"weights": {"scale": "big"}}, "weights.scale: found 'big' (a string), expected a number"),
        ({"weights": {"type": "cots"}}, "weights.type: found 'cots', allowed: cost, fixed"),
    ],
)
def test_wrong_values(block, message):
    assert policy_error(type="beem", **block).startswith(f"model.exit_policy.{message}")


def test_a_number_in_quotes_is_said_to_be_a_string():
    message = error_of(optimizer={"type": "adam", "lr": "1e-5"})
    assert message.startswith("optimizer.lr: found '1e-5' (a string), expected a number (a number is written without")


def test_the_causes_inside_a_union_are_told():
    class Owner(FromParams):
        def __init__(self, either: Weights | Policy) -> None: ...

    with pytest.raises(ConfigurationError) as info:
        Owner.from_params(Params({"either": {"type": "fixed", "valeus": [1]}}))
    assert "either.valeus: unknown key of fixed, allowed: values" in str(info.value)
    assert "either.type: found 'fixed', allowed: beem, patience" in str(info.value)


def test_an_error_of_a_constructor_gets_the_path():
    message = error_of(
        model={"type": "classifier", "exit_policy": {"type": "beem", "weights": {"type": "fixed", "values": []}}}
    )
    assert message == "model.exit_policy.weights.values: found none, expected at least one"


def test_other_peoples_errors_get_the_path_and_keep_their_cause():
    block = {"input_dim": 4, "num_layers": 2, "hidden_dims": [3], "activations": "relu"}
    with pytest.raises(ConfigurationError, match="^model.head: .*hidden_dims") as info:
        run(model={"type": "classifier", "exit_policy": "beem", "head": block})
    assert info.value.__cause__ is not None


def test_blocks_of_allennlp_light_are_checked():
    with pytest.raises(ConfigurationError, match=r"^activations: found 'rel', allowed: relu, .*--include-package"):
        construct(FeedForward, {"input_dim": 4, "num_layers": 1, "hidden_dims": 3, "activations": "rel"})
    with pytest.raises(ConfigurationError, match="^embedding_dm: unknown key of cls_pooler, allowed: embedding_dim"):
        Seq2VecEncoder.from_params(Params({"type": "cls_pooler", "embedding_dm": 4}))
    with pytest.raises(ConfigurationError, match="^type: found 'cls_poler', allowed: cls_pooler"):
        Seq2VecEncoder.from_params(Params({"type": "cls_poler"}))
    applicator = construct(InitializerApplicator, {"regexes": [["weight", {"type": "constant", "val": 2.0}]]})
    layer = torch.nn.Linear(2, 2)
    applicator(layer)
    assert (layer.weight == 2.0).all()
    with pytest.raises(ConfigurationError, match=r"^regexes\.0\.1\.vl: unknown key of constant"):
        construct(InitializerApplicator, {"regexes": [["weight", {"type": "constant", "vl": 2.0}]]})


def test_plain_classes_dataclasses_and_enums():
    class Colour(enum.Enum):
        RED = "red"

    @dataclass
    class Inner:
        size: int
        colour: Colour = Colour.RED

    class Outer(FromParams):
        def __init__(self, inner: Inner, pair: tuple[int, str] = (1, "a"), free: dict[str, Any] | None = None) -> None:
            self.inner, self.pair, self.free = inner, pair, free

    Outer.__init__.__annotations__.update(inner=Inner)
    Inner.__init__.__annotations__.update(colour=Colour)
    nested = {"a": {"b": [{"c": 1}]}}
    outer = Outer.from_params(Params({"inner": {"size": 3, "colour": "red"}, "pair": [2, "b"], "free": nested}))
    assert (outer.inner, outer.pair, outer.free) == (Inner(3, Colour.RED), (2, "b"), nested)
    with pytest.raises(ConfigurationError, match="^inner.sze: unknown key of Inner, allowed: size, colour"):
        Outer.from_params(Params({"inner": {"sze": 3}}))
    with pytest.raises(ConfigurationError, match="^inner: found 3 .a number., expected an Inner block"):
        Outer.from_params(Params({"inner": 3}))
    with pytest.raises(ConfigurationError, match="^pair: found .* expected a list of 2 items"):
        Outer.from_params(Params({"inner": {"size": 3}, "pair": [2]}))


def test_numbers_of_yaml_and_either_kind():
    class Numbers(FromParams):
        def __init__(self, count: int = 0, either: float | int | bool = 0) -> None:
            self.count, self.either = count, either

    assert construct(Numbers, {"count": 3.0}).count == 3
    for value in (1, 1.5, True):
        assert type(construct(Numbers, {"either": value}).either) is type(value)


def test_kwargs_reach_the_base_class_and_no_further():
    built = Model.from_params(Params({"type": "classifier", "exit_policy": "beem", "name": "n"}), vocab="v", other=1)
    assert (built.vocab, built.name) == ("v", "n")
    # `Patience` keeps its own **kwargs, so nothing can be said against further keys.
    assert policy(type="patience", patience=1, colour=[1]).further == {"colour": [1]}


def test_a_from_params_of_ones_own_is_called_and_its_errors_get_the_path():
    @Policy.register("own", exist_ok=True)
    class Own(Policy):
        def __init__(self, a: int) -> None:
            self.a = a

        @classmethod
        def from_params(cls, params_, constructor_to_call=None, constructor_to_inspect=None, **extras):
            if params_.get("a") == 0:
                raise ConfigurationError("a is 0")
            return super().from_params(params_, constructor_to_call, constructor_to_inspect, **extras)

    try:
        assert policy(type="own", a=2).a == 2
        assert policy_error(type="own", a=0) == "model.exit_policy: a is 0"
        assert policy_error(type="own", b=0).startswith("model.exit_policy.b: unknown key of Own")
    finally:
        del Policy._registry[Policy]["own"]


def test_a_class_method_as_constructor():
    @Policy.register("made", constructor="make", exist_ok=True)
    class Made(Policy):
        def __init__(self, total: int) -> None:
            self.total = total

        @classmethod
        def make(cls, parts: list[int]) -> Policy:
            return cls(sum(parts))

    try:
        assert policy(type="made", parts=[1, 2]).total == 3
        assert policy_error(type="made", total=1).startswith("model.exit_policy.total: unknown key of made")
    finally:
        del Policy._registry[Policy]["made"]


def test_a_subclass_can_be_built_with_its_own_type_named():
    assert Beem.from_params(Params({"type": "beem", "min_exit": 2})).min_exit == 2
    assert Beem.from_params(Params({"min_exit": 2})).min_exit == 2
