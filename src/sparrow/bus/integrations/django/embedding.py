"""A bus inside a Django server: `bus.install(application)` in wsgi.py or asgi.py, in place of a worker of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.core.signals import request_started
from django.db import close_old_connections

from sparrow.bus.filters import Context, Next
from sparrow.bus.integrations.django import configured
from sparrow.bus.integrations.embedding import FirstRequest

if TYPE_CHECKING:
    from sparrow.bus.bus import EventBus


def install(bus: EventBus, app: Any, *, start: bool = True) -> None:
    """It starts with the first request. `start=False`: only make the tables that are missing."""
    first_request = FirstRequest(bus, start=start)
    with_fresh_connections(bus)

    def begin(**_: Any) -> None:
        if start and not bus.is_running:
            configured.check_same_database()
        first_request()

    request_started.connect(begin, weak=False, dispatch_uid=("sparrow bus", id(bus)))


def with_fresh_connections(bus: EventBus) -> None:
    """Django looks after its connections at the edges of a request. A handler has none: do it around each call, in the
    handler's own thread, or a connection that broke once would stay broken."""

    async def fresh(ctx: Context, call_next: Next) -> None:
        subscription = ctx.subscription
        if subscription is not None and subscription.executor != "process" and not subscription.plan.is_async:
            ctx.handler = _with_fresh_connections(subscription.handler)
        await call_next(ctx)

    bus.shared.filters = (fresh, *bus.shared.filters)


def _with_fresh_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return call
