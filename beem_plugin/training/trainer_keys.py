"""One constructor that takes the config keys of another."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def with_keys_of(source: Callable[..., Any], without: Collection[str]) -> Callable[[F], F]:
    """
    Makes the `**kwargs` of a constructor stand for the arguments of `source`, with their types and defaults, so that
    configs are checked against them.

    # Parameters

    source : `Callable`
    without : `Collection[str]`
        Arguments of `source` that are left out; those that the constructor names itself are its own in any case.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        left_out = {parameter.name for parameter in own}.union(without)
        hints = typing.get_type_hints(source)
        taken = [
            parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints.get(name, Any))
            for name, parameter in inspect.signature(source).parameters.items()
            if name not in left_out
        ]
        function.__signature__ = signature.replace(parameters=[*own, *taken])  # type: ignore[attr-defined]
        function.__annotations__ = {**function.__annotations__, **{item.name: item.annotation for item in taken}}
        return function

    return decorate
