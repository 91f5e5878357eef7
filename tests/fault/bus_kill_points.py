"""Kill points of a bus worker: between any two steps of a message's life cycle, and inside each transaction.

The product code has no hooks for this: the child process wraps the functions of the product, and the wrapper kills it.

| step | points |
| --- | --- |
| publisher | written, committed |
| relay | claimed, half_sent, sent, marking, marked |
| receiver | delivered, storing, stored, acknowledged |
| executor | taken, handled, ending, ended |
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from sparrow.bus.aio import EventBus
from sparrow.bus.handlers.transactions import AsyncSessionTransaction
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, Transport, TransportConsumer
from sparrow.bus.worker import receiver as receiver_module
from sparrow.bus.worker import relay as relay_module

POINTS = (
    "claimed",  # status Processing, nothing sent
    "half_sent",
    "sent",  # stored in the broker, not marked in the table
    "marking",  # marked, not committed
    "marked",
    "delivered",  # received, not stored
    "storing",  # stored, not committed
    "stored",  # committed, not acknowledged to the broker
    "acknowledged",
    "taken",  # status Processing, handler not called
    "handled",  # handler's rows written, message not ended
    "ending",  # all written, not committed
    "ended",
)


PUBLISHER_POINTS = ("written", "committed")
"""Kill points of a publisher, in its own transaction or in a handler's; the second one is a call of `die` after it."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(bus: EventBus, point: str) -> None:
    """Make the process kill itself when it first reaches the point."""
    assert point in POINTS + PUBLISHER_POINTS, point
    transport = bus.core.context.transport
    if point == "written":
        _replace(bus, "publish", lambda real: _after_async(real))
    elif point in ("claimed", "half_sent", "sent"):
        _arm_send(transport, point)
    elif point in ("stored", "acknowledged"):
        _arm_listen(transport, point)
    elif point == "marking":
        _replace(
            relay_module, "mark_all_succeeded", lambda real: _after(real, lambda _db, _sql, _side, claims, _s: claims)
        )
    elif point == "storing":
        _replace(receiver_module, "store_received", lambda real: _after(real))
    elif point == "delivered":
        _replace(receiver_module, "store_received", lambda real: _before(real))
    elif point == "marked":
        _arm_count(bus, "bus_sent_total")
    elif point == "taken":
        _replace(AsyncSessionTransaction, "call", lambda real: _before(real))
    elif point == "handled":
        _replace(AsyncSessionTransaction, "commit", lambda real: _before(real))
    elif point == "ending":
        _replace(AsyncSessionTransaction, "commit", lambda real: lambda effect, finish: real(effect, _after(finish)))
    elif point == "ended":
        _replace(AsyncSessionTransaction, "commit", lambda real: _after_async(real))


def _always(*_: Any) -> bool:
    return True


def _replace(owner: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrapped(getattr(owner, name)))


def _before(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: die()


def _after(real: Callable[..., Any], if_: Callable[..., Any] = _always) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if if_(*args, **kwargs):
            die()
        return result

    return wrapper


def _after_async(real: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        await real(*args, **kwargs)
        die()

    return wrapper


def _arm_count(bus: EventBus, counter: str) -> None:
    """Kill when a counter is incremented: right after the commit that it counts."""
    probe = bus.core.context.probe
    real = probe.count

    def count(name: str, by: int = 1, **labels: str) -> None:
        real(name, by, **labels)
        if name == counter and by:
            die()

    probe.count = count  # type: ignore[method-assign]


def _arm_send(transport: Transport, point: str) -> None:
    real = transport.send

    async def send(envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        if point != "claimed":
            outcomes = await real(envelopes if point == "sent" else envelopes[: max(1, len(envelopes) // 2)])
            if any(error is not None for error in outcomes):
                return await real(envelopes)  # too early: no broker is reached yet
        die()
        raise AssertionError("unreachable")

    transport.send = send  # type: ignore[method-assign]


def _arm_listen(transport: Transport, point: str) -> None:
    real = transport.listen

    async def listen(group: str, names: Sequence[str], *, prefetch: int) -> TransportConsumer:
        listening = await real(group, names, prefetch=prefetch)
        acknowledge_it = listening.acknowledge

        async def acknowledge(deliveries: Sequence[BrokerDelivery]) -> None:
            if point == "acknowledged":
                await acknowledge_it(deliveries)
            die()

        listening.acknowledge = acknowledge  # type: ignore[method-assign]
        return listening

    transport.listen = listen  # type: ignore[method-assign]
