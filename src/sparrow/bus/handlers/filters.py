"""Filters around handlers: `async def filter(ctx, call_next)`, in the listed order.

1. The first filter is the outermost: it sees the message first and the result last.
2. The result is `ctx.result`; the return value of a filter is ignored.
3. A filter that does not call `call_next` has handled the message. One that raises has failed it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparrow.bus.codec.headers import Headers
from sparrow.bus.errors import SubscriptionError

if TYPE_CHECKING:
    from sparrow.bus.handlers.subscription import EventSubscription


@dataclass
class FilterContext:
    """One call of one handler. For a batch, `event`, `headers` and `payload` are lists."""

    event: Any
    headers: Headers | list[Headers]
    payload: Any
    """May be replaced before the handler runs."""
    subscription: EventSubscription | None = None
    handler: Callable[..., Any] | None = None
    """May be replaced before the call by another function that takes the same arguments."""
    result: Any = None
    """What the handler returned; may be replaced after it ran."""
    error: Exception | None = None
    """For `exception(ctx)`: what was raised."""
    handled: bool = False
    """Set by `exception(ctx)`: the message counts as handled, with `result`."""
    state: dict[str, Any] = field(default_factory=dict)
    """Values that filters pass to each other."""


CallNext = Callable[[FilterContext], Awaitable[Any]]
HandlerFilter = Callable[[FilterContext, CallNext], Awaitable[Any]]

_METHODS = ("executing", "executed", "exception")


def chain_filters(filters: Sequence[HandlerFilter], innermost: CallNext) -> CallNext:
    """Return a callable that runs all filters around `innermost`, whose return value becomes `ctx.result`."""

    async def call_handler(ctx: FilterContext) -> Any:
        ctx.result = await innermost(ctx)
        return ctx.result

    call: CallNext = call_handler
    for each in reversed(filters):
        call = _around(each, call)
    return call


def to_filter(given: Any) -> HandlerFilter:
    """Return a filter function.

    Accepts a filter function, or an object or class with any of the methods `executing(ctx)`, `executed(ctx)` and
    `exception(ctx)`, plain or async. A class is instantiated without arguments.
    """
    if inspect.isclass(given):
        try:
            given = given()
        except TypeError as error:
            raise SubscriptionError(
                f"filter {given.__qualname__} cannot be instantiated without arguments ({error}): pass an instance"
            ) from error
    if any(callable(getattr(given, method, None)) for method in _METHODS):
        return _three_methods(given)
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        taken: HandlerFilter = given
        return taken
    raise SubscriptionError(
        f"{given!r} is not a filter: write `async def filter(ctx, call_next)`, "
        "or a class with executing, executed or exception"
    )


def _around(each: HandlerFilter, inner: CallNext) -> CallNext:
    async def call(ctx: FilterContext) -> Any:
        await each(ctx, inner)
        return ctx.result

    return call


def _three_methods(given: Any) -> HandlerFilter:
    executing, executed, exception = (getattr(given, method, None) for method in _METHODS)

    async def around(ctx: FilterContext, call_next: CallNext) -> None:
        try:
            await _run(executing, ctx)
            await call_next(ctx)
            await _run(executed, ctx)
        except Exception as error:  # not BaseException: a cancelled handler is never a success
            ctx.error, ctx.handled = error, False
            await _run(exception, ctx)
            if not ctx.handled:
                raise
            ctx.error = None

    return around


async def _run(method: Callable[[FilterContext], Any] | None, ctx: FilterContext) -> None:
    if method is None:
        return
    answer = method(ctx)
    if inspect.isawaitable(answer):
        await answer
