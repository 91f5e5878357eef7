"""The transaction bound by `bus.bind`, per task and thread: a context variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_bound: ContextVar[Any] = ContextVar("sparrow bus transaction", default=None)


@contextmanager
def bind_transaction(handle: Any) -> Iterator[None]:
    """Bind a transaction until the block ends; then restore the previous one."""
    token = _bound.set(handle)
    try:
        yield
    finally:
        _bound.reset(token)


def bound_transaction() -> Any:
    return _bound.get()
