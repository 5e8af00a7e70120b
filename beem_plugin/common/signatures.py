"""Arguments of constructors with evaluated annotations, including those passed on by `**kwargs`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import tango.common
import torch

#: The value of `inspect` for a missing annotation or default.
EMPTY: Any = inspect.Parameter.empty

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
    """
    The arguments of an `__init__`, a bound class method used as constructor, or a factory function; `**kwargs` are
    followed to the base classes of `cls`, which it constructs, if these can be built from configs.
    """
    if function in _WITHOUT_ARGUMENTS:
        return Signature({})
    hints = _type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls", "_cls") and not inspect.ismethod(function):
        del parameters[0]
    own = {
        each.name: each.replace(annotation=hints.get(each.name, each.annotation))
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
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
