"""The transaction that publishing belongs to when none is named: by context, so each task and thread has its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_bound: ContextVar[Any] = ContextVar("sparrow bus transaction", default=None)


@contextmanager
def bind_transaction(handle: Any) -> Iterator[None]:
    """Until the block ends; what was bound before is bound again then."""
    token = _bound.set(handle)
    try:
        yield
    finally:
        _bound.reset(token)


def bound_transaction() -> Any:
    return _bound.get()
