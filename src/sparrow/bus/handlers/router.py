"""Routers: subscriptions with a common topic prefix, by partial topics such as ".cancelled".

```python
@bus.router("order")
class Orders:
    @subscribe(".cancelled")
    def cancelled(self, evt: dict): ...

orders = bus.router("order", group="billing")
@orders.subscribe(".created")
def created(evt: dict): ...
```
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sparrow.bus.errors import SubscriptionError

if TYPE_CHECKING:
    from sparrow.bus.handlers.registry import SubscriptionRegistry
    from sparrow.bus.handlers.subscription import SubscriptionOptions

Function = TypeVar("Function", bound=Callable[..., Any])
Target = TypeVar("Target")

_MARKS = "__sparrow_subscriptions__"


def subscribe(topic: str, **options: Unpack[SubscriptionOptions]) -> Callable[[Function], Function]:
    """Mark a function or method as a handler. A router on its class, or `scan`, subscribes it."""
    _refuse_a_bare_decorator(topic)

    def mark(function: Function) -> Function:
        target = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        setattr(target, _MARKS, [*getattr(target, _MARKS, ()), (topic, options)])
        return function

    return mark


class Router:
    """A prefix for topics that start with a dot, and default options; made by `SubscriptionRegistry.router`."""

    def __init__(self, registry: SubscriptionRegistry, prefix: str, defaults: SubscriptionOptions) -> None:
        self._registry, self._prefix, self._defaults = registry, prefix.rstrip("."), defaults

    def subscribe(self, topic: str, **options: Unpack[SubscriptionOptions]) -> Callable[[Function], Function]:
        """Return a decorator that subscribes a function under the prefix."""
        _refuse_a_bare_decorator(topic)

        def take(function: Function) -> Function:
            self.add(topic, function, **options)
            return function

        return take

    def add(self, topic: str, function: Callable[..., Any] | str, **options: Unpack[SubscriptionOptions]) -> None:
        """Add a subscription under the prefix; the handler may be a string "module:name"."""
        filters = (*self._defaults.get("filters", ()), *options.get("filters", ()))
        merged: SubscriptionOptions = {**self._defaults, **options, "filters": filters}
        self._registry.add(self._prefix + topic if topic.startswith(".") else topic, function, **merged)

    def __call__(self, target: Target) -> Target:
        """Subscribe the marked handlers of a class, an instance or a module.

        A class is instantiated without arguments.
        """
        holder: Any = target
        if inspect.isclass(target):
            try:
                holder = target()
            except TypeError as error:
                raise SubscriptionError(
                    f"{target.__qualname__} cannot be instantiated without arguments ({error}): "
                    f"pass an instance, bus.router({self._prefix!r})({target.__qualname__}(...))"
                ) from error
        found = list(marked_handlers(holder))
        if not found:
            raise SubscriptionError(f"{target!r} has no method or function marked with @subscribe")
        for topic, function, options in found:
            self.add(topic, function, **options)
        return target


def marked_handlers(holder: Any) -> Iterator[tuple[str, Callable[..., Any], SubscriptionOptions]]:
    """Yield the marked functions of a module, or the marked bound methods of an object.

    Functions that a module has imported are left out.
    """
    is_module = inspect.ismodule(holder)
    for name in list(vars(holder)) if is_module else dir(type(holder)):
        # Without evaluating attributes: that would run properties.
        found = inspect.getattr_static(holder, name, None)
        function = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        if not inspect.isroutine(function) or (is_module and function.__module__ != holder.__name__):
            continue
        for topic, options in getattr(function, _MARKS, ()):
            yield topic, getattr(holder, name), options


def _refuse_a_bare_decorator(topic: object) -> None:
    if not isinstance(topic, str):
        raise SubscriptionError(f'subscribe needs a topic, not {topic!r}: write @subscribe("order.created")')
