"""
Registry and construction from configs: tango's classes with the construction of `construct.py` and without tango's
search, which imports modules to find a name.

Importing this module imports torch (through tango), so command-line parsing must not need it.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import tango.common
from allennlp_light.modules.attention import Attention
from allennlp_light.modules.matrix_attention import MatrixAttention
from allennlp_light.modules.seq2seq_encoders import Seq2SeqEncoder
from allennlp_light.modules.seq2vec_encoders import Seq2VecEncoder
from allennlp_light.modules.span_extractors import SpanExtractor
from allennlp_light.nn.activations import Activation
from allennlp_light.nn.initializers import Initializer
from allennlp_light.nn.regularizers import Regularizer
from tango.common import Params

from beem_plugin.common.construct import STANDARD_FROM_PARAMS, construct
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.plugins import import_deferred
from beem_plugin.common.recipes import REGISTRY_ROOTS

__all__ = ["FromParams", "Lazy", "Params", "Registrable", "construct", "made", "names_where", "registered_name"]

T = TypeVar("T")


class FromParams(tango.common.FromParams):
    """
    A class that can be built from a config block. The block and all nested blocks are checked against the constructors
    before any object is built.
    """

    @classmethod
    def from_params(  # type: ignore[override]
        cls: type[T],
        params_: Params | Mapping[str, Any] | str,
        constructor_to_call: Callable[..., Any] | None = None,
        constructor_to_inspect: Callable[..., Any] | None = None,
        **extras: Any,
    ) -> T:
        """
        `construct`, for subclasses too that override this method and pass its arguments on. Extras are not passed to
        nested objects: annotate these as `Lazy[...]`.
        """
        return construct(cls, params_, constructor_to_call, constructor_to_inspect, entered=cls, **extras)


class Registrable(FromParams, tango.common.Registrable):
    """
    A base class whose subclasses are looked up by name in a config: `@Base.register("name")`.

    An unknown name raises an error that lists the registered names. tango's default, which imports every module in the
    working directory to find the name, is disabled: a typo must not run unrelated code. Components whose import was
    deferred are imported first.
    """

    @classmethod
    def register(
        cls, name: str, constructor: str | None = None, exist_ok: bool = False
    ) -> Callable[[type[T]], type[T]]:
        """
        # Parameters

        name : `str`
            The value of `type` in a config.
        constructor : `str`, optional
            The class method that builds the object, instead of `__init__`.
        exist_ok : `bool`, optional (default = `False`)
            Whether an existing registration of the name is replaced.
        """
        if name == "ref":
            raise ConfigurationError("`ref` cannot be registered: tango reserves the name")
        add = super().register(name, constructor=constructor, exist_ok=exist_ok)

        def add_with_error(subclass: type[T]) -> type[T]:
            try:
                return add(subclass)
            except tango.common.exceptions.ConfigurationError as error:
                raise ConfigurationError(str(error)) from error

        return add_with_error

    @classmethod
    def search_modules(cls, name: str) -> None:
        import_deferred()

    @classmethod
    def list_available(cls) -> list[str]:
        """The registered names, the default first."""
        import_deferred()
        return super().list_available()


def registered_name(base: type[Registrable], instance: object) -> str:
    """The first name under which the class of `instance` was registered as a `base`: its `type` in a config."""
    registered = tango.common.Registrable._registry[base]
    for name in sorted(registered, key=lambda name: name != base.default_implementation):
        if registered[name][0] is type(instance):
            return name
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


def made(base: type[T], component: T | str | None, default: str) -> T:
    """A component as it is; a name, by default that of `default`, as that component with its defaults."""
    return component if isinstance(component, base) else construct(base, component or default)  # type: ignore[arg-type]


def names_where(base: type[Registrable], attribute: str) -> str:
    """The registered names, comma-separated, of the classes whose `attribute` is true."""
    names = base.list_available()
    return ", ".join(sorted(name for name in names if getattr(base.resolve_class_name(name)[0], attribute)))


class Lazy(tango.common.Lazy[T], Generic[T]):
    """
    An argument whose constructor needs values from its owner, which calls `construct(**extras)`. The config of a lazy
    argument is checked together with its owner's, except for keys that the extras may provide.
    """

    @property
    def constructor(self) -> Callable[..., T]:
        if not isinstance(self._constructor, type):
            return self._constructor
        cls: type[T] = self._constructor
        return lambda **extras: construct(cls, copy.deepcopy(self._params), **extras)


REGISTRY_ROOTS.add(Registrable)
STANDARD_FROM_PARAMS.add(FromParams.from_params.__func__)  # type: ignore[attr-defined]


# The base classes of allennlp-light get the same construction and module search.
for _base in (
    Activation,
    Attention,
    Initializer,
    MatrixAttention,
    Regularizer,
    Seq2SeqEncoder,
    Seq2VecEncoder,
    SpanExtractor,
):
    for _name in ("from_params", "search_modules"):
        setattr(_base, _name, classmethod(getattr(Registrable, _name).__func__))
