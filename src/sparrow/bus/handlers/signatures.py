"""Inspecting handlers: functions, bound methods, callable objects and partials."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_type_hints

from sparrow.bus.errors import SubscriptionError


def handler_name(handler: Any) -> str:
    """Return the name of a handler for messages: `shop.billing.on_order`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__qualname__"):
        handler = type(handler)
    return f"{handler.__module__}.{handler.__qualname__}"


def parameters_of(handler: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters that a caller can fill."""
    try:
        found = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError) as error:
        raise SubscriptionError(f"the signature of {name} cannot be read: {error}") from error
    # Arguments that a partial has bound by name need no value.
    bound = handler.keywords if isinstance(handler, functools.partial) else {}
    named = [each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if found and not named and found[0].kind is inspect.Parameter.VAR_POSITIONAL:
        raise SubscriptionError(f"{name} takes *args, so its parameters are unknown: decorate it with functools.wraps")
    return [each for each in named if each.name not in bound]


def annotation_of(handler: Callable[..., Any], parameter: inspect.Parameter, name: str) -> Any:
    """Return the resolved annotation of one parameter.

    Each is resolved alone: an unresolvable annotation elsewhere does not matter.
    """
    if parameter.annotation is parameter.empty:
        return Any
    function = inspect.unwrap(_function(handler))
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    known = getattr(function, "__globals__", {})
    try:
        return get_type_hints(holder, globalns=known, localns=_around(function), include_extras=True)[parameter.name]
    except Exception as error:  # evaluating an annotation may raise anything
        raise SubscriptionError(
            f"the annotation {parameter.annotation!r} of parameter {parameter.name!r} of {name} cannot be resolved "
            f"({error}): import its names where {name} is defined, not for type checking only"
        ) from error


def _around(function: Any) -> dict[str, Any]:
    """Return the variables of the enclosing function."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    seen = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            seen[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return seen


def _function(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.ismethod(handler):
        return handler.__func__
    if inspect.isclass(handler):
        return handler.__init__
    return handler if inspect.isfunction(handler) else getattr(type(handler), "__call__", handler)  # noqa: B004


def is_coroutine(handler: Any, name: str) -> bool:
    function = _function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SubscriptionError(f"{name} is a generator function: a handler must return, not yield")
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(function)
