"""Checks of the functions that a program passes to a client: coroutine functions for asyncio, plain ones otherwise.

A coroutine function that is called without `await` does nothing, and every message would count as handled. A plain
function on the event loop would stop all other work of the client while it runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Coroutine


def require_coroutine_function(function: object, what: str) -> None:
    """Raise `TypeError` unless awaiting the function makes sense. `what`: what it is, such as "the handler"."""
    _require_callable(function, what)
    if not is_coroutine_function(function):
        raise TypeError(
            f"{what} {name_of(function)} is a plain function, and would block the event loop: write `async def`, or "
            "use sparrow.Consumer, which runs plain functions in threads"
        )


def require_plain_function(function: object, what: str) -> None:
    """Raise `TypeError` for a function that does nothing when it is called: one with `async def`, or with `yield`."""
    _require_callable(function, what)
    if is_coroutine_function(function):
        raise TypeError(
            f"{what} {name_of(function)} is a coroutine function, which the blocking client would never run: write "
            "`def` instead of `async def`, or use the client of sparrow.aio"
        )


def refuse_awaitable(returned: object, what: str) -> None:
    """Raise `TypeError` if a plain function has returned a coroutine, which nobody would await."""
    if isinstance(returned, Coroutine):
        returned.close()
        raise TypeError(
            f"{what} returned the coroutine {name_of(returned)}, which the blocking client does not await: write a "
            "plain function, or use the client of sparrow.aio"
        )


def is_coroutine_function(function: object) -> bool:
    """Return whether a call of the function, method, partial or callable object gives a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def name_of(function: object) -> str:
    """Return how a function is named in errors."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _called(function: object) -> object:
    """Return the function that runs when the object is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function):
        return function
    return getattr(function, "__call__", function)  # noqa: B004 - the bound method is wanted, not whether there is one


def _require_callable(function: object, what: str) -> None:
    if not callable(function):
        raise TypeError(f"{what} is {function!r}, which cannot be called: pass a function of one argument, the message")
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"{what} {name_of(function)} contains `yield`, so a call of it runs nothing: return instead of yielding"
        )
