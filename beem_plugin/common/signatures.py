"""Arguments of constructors with evaluated annotations, including those passed on by `**kwargs`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tango.common
import torch

#: The value of `inspect` for a missing annotation or default.
EMPTY: Any = inspect.Parameter.empty

_WITHOUT_ARGUMENTS = (object.__init__, torch.nn.Module.__init__)


@dataclass(frozen=True)
class Argument:
    """One argument of a constructor."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is EMPTY


@dataclass(frozen=True)
class Signature:
    """
    The arguments of a constructor.

    # Parameters

    arguments : `dict[str, Argument]`
    takes_any : `bool`
        Whether further keys are accepted, because the target of `**kwargs` cannot be inspected.
    """

    arguments: dict[str, Argument]
    takes_any: bool = False


def constructor_of(cls: type) -> Callable[..., Any]:
    """The function with the arguments of `cls(...)`: `__init__`, or `__new__` as in named tuples."""
    init: Callable[..., Any] = cls.__init__  # type: ignore[misc]
    if init is object.__init__ and cls.__new__ is not object.__new__ and inspect.isfunction(cls.__new__):
        return cls.__new__
    return init


def signature_of(function: Callable[..., Any], cls: type | None = None) -> Signature:
    """
    # Parameters

    function : `Callable`
        An `__init__`, a bound class method used as constructor, or a factory function.
    cls : `type`, optional
        The class it constructs; `**kwargs` are followed to its base classes if these can be built from configs.
    """
    if function in _WITHOUT_ARGUMENTS:
        return Signature({})
    hints = _type_hints(function)
    own: dict[str, Argument] = {}
    has_kwargs = False
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if position == 0 and parameter.name in ("self", "cls", "_cls") and not inspect.ismethod(function):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            has_kwargs = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            own[parameter.name] = Argument(
                parameter.name, hints.get(parameter.name, parameter.annotation), parameter.default
            )
    if not has_kwargs:
        return Signature(own)
    inherited = _target_of_kwargs(function, cls)
    return Signature({**inherited.arguments, **own}, inherited.takes_any)


def _target_of_kwargs(function: Callable[..., Any], cls: type | None) -> Signature:
    if cls is not None and inspect.ismethod(function):
        return signature_of(constructor_of(cls), cls)
    mro = cls.__mro__ if cls is not None else ()
    owner = next((position for position, base in enumerate(mro) if base.__dict__.get("__init__") is function), None)
    if owner is not None:
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
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception:  # a name imported for type checking only: the argument is not checked
        return Any
