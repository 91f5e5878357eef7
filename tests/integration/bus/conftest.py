"""Buses on every database, with an in-memory broker and short poll intervals; stopped at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sparrow.bus.aio import EventBus
from sparrow.bus.transports.memory import MemoryBroker, MemoryTransport

QUICK: dict[str, Any] = {
    "app": "shop",
    "poll_min_s": 0.005,
    "poll_max_s": 0.05,
    "stop_timeout_s": 5.0,
    "retry_round_interval_s": None,  # the clock of these tests jumps: a test starts retry rounds itself
}

MakeBus = Callable[..., EventBus]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def make_bus(database_url: str, broker: MemoryBroker) -> AsyncIterator[MakeBus]:
    """Make buses on the database and the broker of this test; the options are those of the bus."""
    made: list[EventBus] = []

    def make(**options: Any) -> EventBus:
        options = QUICK | options
        database = options.pop("database", database_url)
        bus = EventBus(database, MemoryTransport(options.pop("broker", broker)), **options)
        made.append(bus)
        return bus

    yield make
    await asyncio.gather(*(bus.stop() for bus in made))


@pytest.fixture
async def bus(make_bus: MakeBus) -> EventBus:
    """A bus that has its tables and is not started: published events stay in the outbox."""
    bus = make_bus()
    await bus.prepare()
    return bus
