"""A constructor whose `**kwargs` stand for the arguments of another function."""

import functools
import inspect
import operator
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, Union

from torch import Tensor

from beem_plugin.common.recipes import signature_of
from beem_plugin.common.values import EMPTY, bare

F = TypeVar("F", bound=Callable[..., Any])


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
        return functools.reduce(operator.or_, (_without_tensors(item) for item in members if item is not Tensor))
    if origin is tuple:
        return tuple[tuple(_without_tensors(item) if item is not Ellipsis else item for item in members)]  # type: ignore[misc]
    return annotation
