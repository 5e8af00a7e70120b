"""Which class or function a config block builds, and its arguments."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Union

import tango.common
import torch

from beem_plugin.common.errors import nearest_first, not_allowed
from beem_plugin.common.plugins import import_deferred
from beem_plugin.common.values import EMPTY, LocatedError, Mismatch, at, bare, join

F = TypeVar("F", bound=Callable[..., Any])

_WITHOUT_ARGUMENTS = (object.__init__, torch.nn.Module.__init__)


class Signature(NamedTuple):
    """The arguments of a constructor; with `takes_any`, those behind its `**kwargs` are unknown."""

    arguments: dict[str, inspect.Parameter]
    takes_any: bool = False


def constructor_of(cls: type) -> Callable[..., Any]:
    """The function with the arguments of `cls(...)`: `__init__`, or `__new__` as in named tuples."""
    init: Callable[..., Any] = cls.__init__  # type: ignore[misc]
    if init is object.__init__ and cls.__new__ is not object.__new__ and inspect.isfunction(cls.__new__):
        return cls.__new__
    return init


def signature_of(function: Callable[..., Any], cls: type | None = None) -> Signature:
    """The arguments of a constructor; `**kwargs` are followed to the base classes of `cls` that configs can build."""
    if function in _WITHOUT_ARGUMENTS:
        return Signature({})
    parameters = _parameters(function)
    own = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        return Signature(own)
    inherited = _target_of_kwargs(function, cls)
    return Signature({**inherited.arguments, **own}, inherited.takes_any)


def _target_of_kwargs(function: Callable[..., Any], cls: type | None) -> Signature:
    if cls is not None and inspect.ismethod(function):
        return signature_of(constructor_of(cls), cls)
    mro = cls.__mro__ if cls is not None else ()
    owner = next((position for position, base in enumerate(mro) if base.__dict__.get("__init__") is function), len(mro))
    for base in mro[owner + 1 :]:
        if "__init__" in base.__dict__ and issubclass(base, tango.common.FromParams):
            return signature_of(base.__dict__["__init__"], cls)
    return Signature({}, takes_any=True)


@functools.cache
def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those of a call, with evaluated annotations."""
    hints = _type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls", "_cls") and not inspect.ismethod(function):
        del parameters[0]
    return [each.replace(annotation=hints.get(each.name, each.annotation)) for each in parameters]


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # annotations may use names imported for type checking only and can raise any error
        return {name: _evaluated(hint, function) for name, hint in getattr(function, "__annotations__", {}).items()}


def _evaluated(hint: Any, function: Callable[..., Any]) -> Any:
    try:
        return eval(hint, getattr(inspect.unwrap(function), "__globals__", {})) if isinstance(hint, str) else hint
    except Exception:  # a name imported for type checking only: the argument is not checked
        return Any


#: The classes whose direct subclasses are registries.
REGISTRY_ROOTS: set[type] = {tango.common.Registrable}


@dataclass(frozen=True)
class Recipe:
    """`call` is called with the arguments of `inspected`. `name` is for messages."""

    name: str
    owner: type | None
    inspected: Callable[..., Any]
    call: Callable[..., Any]

    @classmethod
    def of(cls, constructed: type, name: str | None = None) -> Recipe:
        return cls(name or constructed.__name__, constructed, constructor_of(constructed), constructed)


def resolve(cls: type, block: dict[str, Any], path: str, type_path: str | None = None) -> tuple[Recipe, dict[str, Any]]:
    """How to build a `cls` from `block`, and the block without its `type`."""
    if not issubclass(cls, tango.common.Registrable):
        return Recipe.of(cls), block
    type_path = type_path or join(path, "type")
    is_base = not REGISTRY_ROOTS.isdisjoint(cls.__bases__)
    registered = registered_for(cls)
    if "type" not in block:
        if is_base and cls.default_implementation is not None:
            return _recipe(cls, cls.default_implementation, registered, type_path), block
        if is_base and registered:
            raise at(type_path, f"missing, allowed: {', '.join(sorted(all_registered_for(cls)))}")
        return Recipe.of(cls), block
    if not is_base and "type" in signature_of(constructor_of(cls), cls).arguments:
        return Recipe.of(cls), block
    rest = {key: value for key, value in block.items() if key != "type"}
    return _recipe(cls, block["type"], registered, type_path), rest


def registered_for(cls: type) -> dict[str, tuple[Any, str | None]]:
    """The allowed values of `type` for a `cls`; for a class that is no registry, its subclasses in other registries."""
    registry = tango.common.Registrable._registry
    if registry.get(cls):
        return dict(registry[cls])
    return {
        name: entry
        for base in cls.__mro__[1:]
        for name, entry in registry.get(base, {}).items()
        if inspect.isclass(entry[0]) and issubclass(entry[0], cls)
    }


def all_registered_for(cls: type) -> dict[str, tuple[Any, str | None]]:
    """`registered_for` with components whose import was deferred."""
    import_deferred()
    return registered_for(cls)


def _recipe(cls: type, name: Any, registered: dict[str, tuple[Any, str | None]], type_path: str) -> Recipe:
    if not isinstance(name, str):
        raise Mismatch.at(type_path, name, f"a name, one of {', '.join(sorted(all_registered_for(cls)))}")
    constructor = None
    if name not in registered:
        registered = all_registered_for(cls)
    if name in registered:
        found, constructor = registered[name]
    elif all(part.isidentifier() for part in name.split(".")) and "." in name:
        found = _by_full_name(cls, name, registered, type_path)
    else:
        reserved = ", `ref` is a reserved name" if name == "ref" else ""
        message = not_allowed(type_path, name, registered)
        raise LocatedError(f"{message} (a class of your own needs --include-package{reserved})")
    if not inspect.isclass(found):
        return Recipe(name, None, found, found)
    if constructor is None:
        return Recipe.of(found, name)
    method = getattr(found, constructor)
    return Recipe(name, found, method, method)


def _by_full_name(cls: type, name: str, registered: dict[str, Any], type_path: str) -> Any:
    module_name, _, class_name = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        known = ", ".join(nearest_first(name, registered))
        raise at(type_path, f"found {name!r}, which cannot be imported ({error}), allowed: {known}") from error
    if not (inspect.isclass(found) and issubclass(found, cls)):
        raise at(type_path, f"found {name!r}, which is no {cls.__name__}")
    return found


def with_keys_of(
    source: Callable[..., Any],
    without: Collection[str] = (),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    annotations: Mapping[str, Any] = types.MappingProxyType({}),
) -> Callable[[F], F]:
    """
    Replaces the `**kwargs` in a constructor's signature by the arguments of `source`, so that configs are checked
    against their types. `defaults` and `annotations` differ from those of `source`; the default `EMPTY` makes an
    argument required.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        left_out = {parameter.name for parameter in own}.union(without)
        taken = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, argument.default),
                annotation=annotations.get(name, _annotation(argument)),
            )
            for name, argument in signature_of(source).arguments.items()
            if name not in left_out
        ]
        function.__signature__ = signature.replace(parameters=[*own, *taken])  # type: ignore[attr-defined]
        function.__annotations__ = {**function.__annotations__, **{item.name: item.annotation for item in taken}}
        return function

    return decorate


def key_reference(about: str, constructor: Callable[..., Any], meanings: Mapping[str, str] | None = None) -> str:
    """A docstring: `about`, and the "# Parameters" that `with_keys_of` added to a constructor, with their meanings."""
    lines = ["# Parameters", ""]
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            hint = parameter.annotation
            kind = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
            ending = "" if parameter.default is EMPTY else f", optional (default = `{parameter.default!r}`)"
            lines.append(f"{parameter.name} : `{kind.replace('typing.', '')}`{ending}")
            if meanings and parameter.name in meanings:
                lines.append(textwrap.indent(meanings[parameter.name], "    "))
    return about if len(lines) == 2 else "\n".join([about, "", *lines])


def _annotation(argument: inspect.Parameter) -> Any:
    if argument.annotation is not EMPTY:
        return _without_tensors(argument.annotation)
    if argument.default is None:
        return float | None
    if isinstance(argument.default, tuple):
        return tuple[tuple(type(item) for item in argument.default)]  # type: ignore[misc]
    return Any if argument.default is EMPTY else type(argument.default)


def _without_tensors(annotation: Any) -> Any:
    annotation = bare(annotation)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, (_without_tensors(item) for item in members if item is not torch.Tensor))
    if origin is tuple:
        return tuple[tuple(_without_tensors(item) if item is not Ellipsis else item for item in members)]  # type: ignore[misc]
    return annotation
