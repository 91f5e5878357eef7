"""A bus inside a Django server: `bus.install(application)` in wsgi.py or asgi.py, instead of a worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.signals import request_started

from sparrow.bus.integrations.django import configuration
from sparrow.bus.integrations.django.transaction import DjangoTransaction
from sparrow.bus.integrations.first_request import StartOnFirstRequest

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus


def install(bus: AnyEventBus, app: Any, *, start: bool = True) -> None:
    """Start the bus with the first request; with `start=False` only create the missing tables."""
    first_request = StartOnFirstRequest(bus, start=start)
    with_django_transactions(bus)

    def begin(**_: Any) -> None:
        if start and not bus.is_running:
            configuration.check_same_database()
        first_request()

    request_started.connect(begin, weak=False, dispatch_uid=("sparrow bus", id(bus)))


def with_django_transactions(bus: AnyEventBus) -> None:
    """Run blocking handlers inside Django's `atomic()`.

    Their writes through Django's models and the completion of the message are one commit.
    """
    bus.core.context.blocking_transaction = partial(DjangoTransaction, configuration.using())
