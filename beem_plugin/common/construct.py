"""
Objects from config blocks, in two steps: the whole block is checked against the constructors, then it is built. So an
error at the end of a config is found before a model is loaded, and its message names the full key.
"""

import inspect
import types
import typing
from collections import OrderedDict, abc
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

import tango.common
from tango.common import Params

from beem_plugin.common.errors import ConfigurationError, nearest_first
from beem_plugin.common.recipes import Recipe, all_registered_for, constructor_of, resolve, signature_of
from beem_plugin.common.values import EMPTY, Mismatch, NoneType, at, bare, describe_type, errors_at, join, plan_scalar

T = TypeVar("T")
Plan = Callable[[], Any]

#: The `from_params` methods that this module replaces.
STANDARD_FROM_PARAMS: set[Any] = {tango.common.FromParams.from_params.__func__}  # type: ignore[attr-defined]

_LISTS = (list, tuple, set, frozenset, abc.Collection, abc.Iterable, abc.MutableSequence, abc.Sequence)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping, OrderedDict)


def construct(
    cls: type[T],
    params: Params | Mapping[str, Any] | str,
    /,
    constructor_to_call: Callable[..., Any] | None = None,
    constructor_to_inspect: Callable[..., Any] | None = None,
    entered: type | None = None,
    **extras: Any,
) -> T:
    """
    Builds any class from a config block, which is not consumed: a registered one by its `type`, a plain one by its
    constructor. A string is short for `{"type": string}`; `extras` are arguments from the program, of which those that
    the constructor does not take are dropped. Errors name the full path of the key, what was found and what is allowed.
    Never calls `entered.from_params`, which may be the caller.
    """
    path = params.history.rstrip(".") if isinstance(params, Params) else ""
    block, type_path = _block_of(cls, params, path)
    if constructor_to_call is None:
        recipe, block = resolve(cls, block, path, type_path)
    else:
        recipe = Recipe(cls.__name__, cls, constructor_to_inspect or constructor_of(cls), constructor_to_call)
    return typing.cast(T, _plan_block(recipe, block, path, extras, entered=entered)())


def check(cls: type, params: Mapping[str, Any], partial: bool = False) -> None:
    """Raises what `construct` would raise about keys and types; with `partial`, further arguments are given later."""
    recipe, block = resolve(cls, _plain(params), "")
    _plan_block(recipe, block, "", {}, partial=partial)


def _plan_block(
    recipe: Recipe,
    block: dict[str, Any],
    path: str,
    extras: Mapping[str, Any],
    entered: type | None = None,
    partial: bool = False,
) -> Plan:
    """With `partial` further arguments are given later, so that none is missing."""
    own = getattr(recipe.owner, "from_params", None) if recipe.owner is not entered else None
    if own is not None and getattr(own, "__func__", own) not in STANDARD_FROM_PARAMS:
        return lambda: _call_from_params(recipe, block, path, extras)
    signature = signature_of(recipe.inspected, recipe.owner)
    arguments = signature.arguments
    for key in block:
        if key not in arguments and not signature.takes_any:
            allowed = [name for name in arguments if name not in extras]
            names = ", ".join(nearest_first(key, allowed)) or "none"
            raise at(join(path, key), f"unknown key of {recipe.name}, allowed: {names}")
    plans: dict[str, Plan] = {
        key: _plan(arguments[key].annotation, value, join(path, key), arguments[key].default)
        if key in arguments
        else _constant(value)
        for key, value in block.items()
    }
    given = {
        key: value for key, value in extras.items() if key not in plans and (key in arguments or signature.takes_any)
    }
    for name, argument in arguments.items():
        if argument.default is EMPTY and not partial and name not in plans and name not in given:
            raise at(join(path, name), f"missing, {recipe.name} needs it: {describe_type(bare(argument.annotation))}")

    def build() -> Any:
        values = {key: plan() for key, plan in plans.items()}
        with errors_at(path, recipe.name, arguments):
            return recipe.call(**values, **given)

    return build


def _call_from_params(recipe: Recipe, block: dict[str, Any], path: str, extras: Mapping[str, Any]) -> Any:
    assert recipe.owner is not None
    method = recipe.owner.from_params  # type: ignore[attr-defined]
    given = {"constructor_to_call": recipe.call, "constructor_to_inspect": recipe.inspected, **extras}
    parameters = inspect.signature(method).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {key: value for key, value in given.items() if key in parameters}
    with errors_at(path, recipe.name, ()):
        return method(_params(block, path), **given)


def _plan(annotation: Any, value: Any, path: str, default: Any = EMPTY) -> Plan:
    """How `value` becomes what `annotation` says. Raises `ConfigurationError` if it cannot."""
    annotation = bare(annotation)
    if isinstance(value, Params):
        value = value.as_dict(quiet=True)
    origin, args = get_origin(annotation), get_args(annotation)
    kind = origin or annotation
    if annotation is Any or kind in (type, abc.Callable) or (value is None and default is None):
        return _constant(value)
    if origin in (Union, types.UnionType):
        return _plan_union(args, value, path)
    if (value is None) != (annotation is NoneType):
        raise Mismatch.at(path, value, describe_type(annotation))
    if value is None:
        return _constant(None)
    scalar = plan_scalar(annotation, value, path)
    if scalar is not None:
        return scalar
    if kind in _LISTS:
        plans = _plan_items(value, path, annotation)
        target: Any = kind if kind in (set, frozenset, tuple) else list
        return lambda: target(plan() for plan in plans)
    if kind in _MAPPINGS or typing.is_typeddict(kind):
        return _plan_mapping(args, value, path)
    if not inspect.isclass(kind):
        return _constant(value)
    if isinstance(value, kind) and not isinstance(value, dict):
        return lambda: value  # given by a program, already built
    if issubclass(kind, Params):
        return lambda: _params(_block_of(kind, value, path)[0], path)
    if issubclass(kind, tango.common.Lazy):
        return _plan_lazy(kind, args[0] if args else object, value, path)
    block, type_path = _block_of(kind, value, path)
    recipe, block = resolve(kind, block, path, type_path)
    return _plan_block(recipe, block, path, {})


def _plan_union(members: tuple[Any, ...], value: Any, path: str) -> Plan:
    # 1 for `float | int` is the integer 1, as true for `int | bool` is no number.
    in_order = sorted((bare(member) for member in members), key=lambda member: member is not type(value))
    if isinstance(value, str):
        in_order = [bare(member) for member in members]
    errors: list[tuple[Any, ConfigurationError]] = []
    for member in in_order:
        try:
            return _plan(member, value, path)
        except ConfigurationError as error:
            errors.append((member, error))
    inside = [pair for pair in errors if not (isinstance(pair[1], Mismatch) and pair[1].path == path)]
    if not inside:
        raise Mismatch.at(path, value, " or ".join(describe_type(bare(member)) for member in members))
    if len(inside) == 1:
        raise inside[0][1]
    causes = "; ".join(f"as {describe_type(member)}: {error}" for member, error in inside)
    raise at(path, f"fits none of the forms that are allowed: {causes}") from inside[0][1]


def _plan_items(value: Any, path: str, annotation: Any) -> list[Plan]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise Mismatch.at(path, value, describe_type(annotation))
    members = get_args(annotation) or (Any,)
    if get_origin(annotation) is not tuple or members[-1] is Ellipsis:
        members = members[:1] * len(value)
    elif len(members) != len(value):
        raise Mismatch.at(path, value, f"a list of {len(members)} items")
    return [_plan(member, item, join(path, str(i))) for i, (member, item) in enumerate(zip(members, value))]


def _plan_mapping(args: tuple[Any, ...], value: Any, path: str) -> Plan:
    if not isinstance(value, Mapping):
        raise Mismatch.at(path, value, "a block {...}")
    if len(args) != 2:
        return _constant(value)
    kind, plans = bare(args[0]), {}
    for key, item in value.items():
        try:
            plan_key = kind(key) if kind in (int, float) and isinstance(key, str) else key
        except ValueError:
            message = f"found the key {key!r}, expected keys that are {kind.__name__}s"
            raise at(join(path, key), message) from None
        plans[plan_key] = _plan(args[1], item, join(path, str(key)))
    return lambda: {key: plan() for key, plan in plans.items()}


def _plan_lazy(kind: type, inner: Any, value: Any, path: str) -> Plan:
    inner = bare(inner)
    block, type_path = _block_of(inner, value, path)
    if inspect.isclass(inner):
        recipe, rest = resolve(inner, block, path, type_path)
        _plan_block(recipe, rest, path, {}, partial=True)  # only for its errors
    return lambda: kind(inner, params=_params(block, path))


def _block_of(cls: Any, value: Any, path: str) -> tuple[dict[str, Any], str | None]:
    """The block, and the path of its `type` if that is not `path.type`."""
    is_registry = inspect.isclass(cls) and issubclass(cls, tango.common.Registrable)
    if isinstance(value, str) and is_registry:
        return {"type": value}, path
    if not isinstance(value, Mapping):
        names = ", ".join(sorted(all_registered_for(cls))) if is_registry else ""
        raise Mismatch.at(path, value, f"{describe_type(cls)}{f' or one of the names {names}' if names else ''}")
    return _plain(value), None


def _plain(value: Any) -> Any:
    """A copy in dicts and lists, without `Params`."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in (value.params if isinstance(value, Params) else value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _constant(value: Any) -> Plan:
    return lambda: _plain(value)


def _params(block: dict[str, Any], path: str) -> Params:
    return Params(_plain(block), history=f"{path}." if path else "")
