"""
From a config block to an object, in two steps: first the whole block is checked against the constructors it will meet,
then it is built. So a typo at the end of a config is found before the first model is loaded, and its error names the
full key.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin

import tango.common
from tango.common import Params
from tango.common.exceptions import ConfigurationError as TangoConfigurationError

from beem_plugin.common.errors import ConfigurationError, nearest_first, not_allowed
from beem_plugin.common.signatures import EMPTY, constructor_of, signature_of
from beem_plugin.common.values import Mismatch, NoneType, bare, describe_type, plan_scalar

T = TypeVar("T")
Plan = Callable[[], Any]

#: The classes whose direct subclasses are registries, and the `from_params` functions that this module stands in for.
REGISTRY_ROOTS: set[type] = {tango.common.Registrable}
STANDARD_FROM_PARAMS: set[Any] = {tango.common.FromParams.from_params.__func__}  # type: ignore[attr-defined]

_LISTS: tuple[type, ...] = (
    list,
    collections.abc.Collection,
    collections.abc.Iterable,
    collections.abc.MutableSequence,
    collections.abc.Sequence,
)
_MAPPINGS: tuple[type, ...] = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict)


@dataclass(frozen=True)
class Recipe:
    """How one block is built: `call` with the arguments that `inspected` takes. `name` is for messages."""

    name: str
    owner: type | None
    inspected: Callable[..., Any]
    call: Callable[..., Any]

    @classmethod
    def of(cls, constructed: type, name: str | None = None) -> Recipe:
        return cls(name or constructed.__name__, constructed, constructor_of(constructed), constructed)


def construct(cls: type[T], params: Params | Mapping[str, Any] | str, **extras: Any) -> T:
    """
    Builds any class from a config block: a registered one by its `type`, a plain one by its constructor.

    # Parameters

    cls : `type`
    params : `Params`, `dict` or `str`
        The block; a string is short for `{"type": string}`. It is not consumed.
    extras : `Any`
        Arguments that the program gives; those that the constructor does not take are dropped.

    Raises `ConfigurationError`, one line that names the full path of the key, what was found and what is allowed.
    """
    block, path = _top_block(params)
    recipe, block = _resolve(cls, block, path)
    return typing.cast(T, _plan_block(recipe, block, path, extras)())


def construct_within(
    cls: type[T],
    params: Params | Mapping[str, Any] | str,
    constructor_to_call: Callable[..., Any] | None,
    constructor_to_inspect: Callable[..., Any] | None,
    extras: dict[str, Any],
) -> T:
    """What `cls.from_params` does: like `construct`, but never calls `cls.from_params`, which may be the caller."""
    block, path = _top_block(params)
    if constructor_to_call is None:
        recipe, block = _resolve(cls, block, path)
    else:
        recipe = Recipe(cls.__name__, cls, constructor_to_inspect or constructor_of(cls), constructor_to_call)
    return typing.cast(T, _plan_block(recipe, block, path, extras, entered=cls)())


def _top_block(params: Params | Mapping[str, Any] | str) -> tuple[dict[str, Any], str]:
    path = params.history.rstrip(".") if isinstance(params, Params) else ""
    if isinstance(params, str):
        return {"type": params}, path
    if not isinstance(params, Mapping):
        raise Mismatch(path, params, "a block {...}")
    return _plain(params), path


# Blocks ------------------------------------------------------------------------------------------------------------


def _plan_block(
    recipe: Recipe,
    block: dict[str, Any],
    path: str,
    extras: Mapping[str, Any],
    entered: type | None = None,
    partial: bool = False,
) -> Plan:
    """`partial`: further arguments will come from the program, so that none is missing yet."""
    if recipe.owner is not None and recipe.owner is not entered and _has_own_from_params(recipe.owner):
        return lambda: _call_from_params(recipe, block, path, extras)
    signature = signature_of(recipe.inspected, recipe.owner)
    arguments = signature.arguments
    for key in block:
        if key not in arguments and not signature.takes_any:
            allowed = [name for name in arguments if name not in extras]
            names = ", ".join(nearest_first(key, allowed)) or "none"
            raise _at(_join(path, key), f"unknown key of {recipe.name}, allowed: {names}")
    plans: dict[str, Plan] = {
        key: _plan(arguments[key].annotation, value, _join(path, key), arguments[key].default)
        if key in arguments
        else _constant(value)
        for key, value in block.items()
    }
    given = {
        key: value for key, value in extras.items() if key not in plans and (key in arguments or signature.takes_any)
    }
    for name, argument in arguments.items():
        if argument.required and not partial and name not in plans and name not in given:
            raise _at(_join(path, name), f"missing, {recipe.name} needs it: {describe_type(bare(argument.annotation))}")

    def build() -> Any:
        values = {key: plan() for key, plan in plans.items()}
        with _errors_at(path, recipe, arguments):
            return recipe.call(**values, **given)

    return build


def _resolve(
    cls: type, block: dict[str, Any], path: str, type_path: str | None = None
) -> tuple[Recipe, dict[str, Any]]:
    """The class that `block` is to become, and the block without its `type`."""
    if not issubclass(cls, tango.common.Registrable):
        return Recipe.of(cls), block
    type_path = type_path or _join(path, "type")
    is_base = not REGISTRY_ROOTS.isdisjoint(cls.__bases__)
    registered = _registered(cls)
    if "type" not in block:
        if is_base and cls.default_implementation is not None:
            return _recipe(cls, cls.default_implementation, registered, type_path), block
        if is_base and registered:
            raise _at(type_path, f"missing, allowed: {', '.join(sorted(registered))}")
        return Recipe.of(cls), block
    if not is_base and "type" in signature_of(constructor_of(cls), cls).arguments:
        return Recipe.of(cls), block
    rest = {key: value for key, value in block.items() if key != "type"}
    return _recipe(cls, block["type"], registered, type_path), rest


def _registered(cls: type) -> dict[str, tuple[Any, str | None]]:
    """What may stand for `type` where a `cls` is wanted; for a class that is no registry, its subclasses elsewhere."""
    registry = tango.common.Registrable._registry
    if registry.get(cls):
        return dict(registry[cls])
    return {
        name: entry
        for base in cls.__mro__[1:]
        for name, entry in registry.get(base, {}).items()
        if inspect.isclass(entry[0]) and issubclass(entry[0], cls)
    }


def _recipe(cls: type, name: Any, registered: dict[str, tuple[Any, str | None]], type_path: str) -> Recipe:
    if not isinstance(name, str):
        raise Mismatch(type_path, name, f"a name, one of {', '.join(sorted(registered))}")
    if name in registered:
        found, constructor = registered[name]
    elif all(part.isidentifier() for part in name.split(".")) and "." in name:
        found, constructor = _by_full_name(cls, name, type_path), None
    else:
        reserved = ", `ref` is a reserved name" if name == "ref" else ""
        message = not_allowed(type_path, name, registered)
        raise _located(f"{message} (a class of your own needs --include-package{reserved})")
    if not inspect.isclass(found):
        return Recipe(name, None, found, found)
    if constructor is None:
        return Recipe.of(found, name)
    method = getattr(found, constructor)
    return Recipe(name, found, method, method)


def _by_full_name(cls: type, name: str, type_path: str) -> Any:
    module_name, _, class_name = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        known = ", ".join(nearest_first(name, _registered(cls)))
        raise _at(type_path, f"found {name!r}, which cannot be imported ({error}), allowed: {known}") from error
    if not (inspect.isclass(found) and issubclass(found, cls)):
        raise _at(type_path, f"found {name!r}, which is no {cls.__name__}")
    return found


def _has_own_from_params(cls: type) -> bool:
    method = getattr(cls, "from_params", None)
    return method is not None and getattr(method, "__func__", method) not in STANDARD_FROM_PARAMS


def _call_from_params(recipe: Recipe, block: dict[str, Any], path: str, extras: Mapping[str, Any]) -> Any:
    assert recipe.owner is not None
    method = recipe.owner.from_params  # type: ignore[attr-defined]
    given = {"constructor_to_call": recipe.call, "constructor_to_inspect": recipe.inspected, **extras}
    parameters = inspect.signature(method).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {key: value for key, value in given.items() if key in parameters}
    with _errors_at(path, recipe, {}):
        return method(_params(block, path), **given)


# Values ------------------------------------------------------------------------------------------------------------


def _plan(annotation: Any, value: Any, path: str, default: Any = EMPTY) -> Plan:
    """How `value` becomes what `annotation` says. Raises `ConfigurationError` if it cannot."""
    annotation = bare(annotation)
    if isinstance(value, Params):
        value = value.as_dict(quiet=True)
    origin, args = get_origin(annotation), get_args(annotation)
    kind = origin or annotation
    if annotation is Any or kind in (type, collections.abc.Callable):
        return _constant(value)
    if value is None and default is None:
        return _constant(None)
    if origin in (Union, types.UnionType):
        return _plan_union(args, value, path)
    if value is None:
        if annotation is NoneType:
            return _constant(None)
        raise Mismatch(path, value, describe_type(annotation))
    if annotation is NoneType:
        raise Mismatch(path, value, "null")
    scalar = plan_scalar(annotation, value, path)
    if scalar is not None:
        return scalar
    if kind in _LISTS:
        plans = _plan_items(value, path, annotation, [args[0] if args else Any])
        return lambda: [plan() for plan in plans]
    if kind in (set, frozenset):
        plans = _plan_items(value, path, annotation, [args[0] if args else Any])
        return lambda: kind(plan() for plan in plans)
    if kind is tuple:
        plans = _plan_items(value, path, annotation, list(args) or [Any, Ellipsis])
        return lambda: tuple(plan() for plan in plans)
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
    recipe, block = _resolve(kind, block, path, type_path)
    return _plan_block(recipe, block, path, {})


def _plan_union(members: tuple[Any, ...], value: Any, path: str) -> Plan:
    if value is None and NoneType in members:
        return _constant(None)
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
        raise Mismatch(path, value, " or ".join(describe_type(bare(member)) for member in members))
    if len(inside) == 1:
        raise inside[0][1]
    causes = "; ".join(f"as {describe_type(member)}: {error}" for member, error in inside)
    raise _at(path, f"fits none of the forms that are allowed: {causes}") from inside[0][1]


def _plan_items(value: Any, path: str, annotation: Any, members: list[Any]) -> list[Plan]:
    """The plans of a list's items; `members` is one annotation for all, one for each, or one and an ellipsis."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise Mismatch(path, value, describe_type(annotation))
    items = list(value)
    if len(members) == 2 and members[1] is Ellipsis:
        members = members[:1]
    elif get_origin(annotation) is tuple and len(members) != len(items):
        raise Mismatch(path, value, f"a list of {len(members)} items")
    if len(members) == 1:
        members = members * len(items)
    return [_plan(member, item, _join(path, str(i))) for i, (member, item) in enumerate(zip(members, items))]


def _plan_mapping(args: tuple[Any, ...], value: Any, path: str) -> Plan:
    if not isinstance(value, Mapping):
        raise Mismatch(path, value, "a block {...}")
    if len(args) != 2:
        return _constant(value)
    plans = {
        _mapping_key(bare(args[0]), key, path): _plan(args[1], item, _join(path, str(key)))
        for key, item in value.items()
    }
    return lambda: {key: plan() for key, plan in plans.items()}


def _mapping_key(annotation: Any, key: Any, path: str) -> Any:
    if annotation not in (int, float) or not isinstance(key, str):
        return key
    try:
        return annotation(key)
    except ValueError:
        raise _at(_join(path, key), f"found the key {key!r}, expected keys that are {annotation.__name__}s") from None


def _plan_lazy(kind: type, inner: Any, value: Any, path: str) -> Plan:
    inner = bare(inner)
    block, type_path = _block_of(inner, value, path)
    if inspect.isclass(inner):
        recipe, rest = _resolve(inner, block, path, type_path)
        _plan_block(recipe, rest, path, {}, partial=True)  # only for its errors
    return lambda: kind(inner, params=_params(block, path))


def _block_of(cls: Any, value: Any, path: str) -> tuple[dict[str, Any], str | None]:
    """The block, and the path of its `type` where that is not `path.type`."""
    if isinstance(value, str) and inspect.isclass(cls) and issubclass(cls, tango.common.Registrable):
        return {"type": value}, path
    if not isinstance(value, Mapping):
        raise Mismatch(path, value, _describe_block(cls))
    return _plain(value), None


def _describe_block(cls: Any) -> str:
    if not (inspect.isclass(cls) and issubclass(cls, tango.common.Registrable)):
        return describe_type(cls)
    names = sorted(_registered(cls))
    known = f" or one of the names {', '.join(names)}" if names else ""
    return f"{describe_type(cls)}{known}"


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


# Errors ------------------------------------------------------------------------------------------------------------


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class _LocatedError(ConfigurationError):
    """An error whose message already names its place in the config."""


def _located(message: str) -> ConfigurationError:
    return _LocatedError(message)


def _at(path: str, message: str) -> ConfigurationError:
    return _located(f"{path}: {message}")


@contextmanager
def _errors_at(path: str, recipe: Recipe, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Errors that constructors raise get the path of their block in front."""
    try:
        yield
    except (_LocatedError, Mismatch):
        raise
    except (ConfigurationError, TangoConfigurationError) as error:
        message = str(error)
        if not path or message.startswith(path):
            raise _located(message) from error
        names_its_key = message.split(":")[0].split(".")[0].strip("`") in arguments
        raise _located(f"{path}{'.' if names_its_key else ': '}{message}") from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, AssertionError) as error:
        # What a library makes of a wrong value; ALLENNLP_DEBUG=1 shows where.
        if not path or type(error).__name__ == "OutOfMemoryError":
            raise
        raise _at(path, f"{recipe.name} cannot be built: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
