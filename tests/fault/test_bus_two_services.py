"""The example's two services, killed at every step of a message's life cycle: each order is paid exactly once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import Connection, select
from tests.fault.bus_kill_points import POINTS, PUBLISHER_POINTS
from tests.fault.bus_worker import Job, load_two_services
from tests.fault.bus_worker_pool import CRASHES_MAX, LEASE_S, POLL_MAX_S, TIMEOUT_S, WorkerPool, poll_until

from sparrow.bus.aio import EventBus
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.testing import RunningPlatform

pytestmark = pytest.mark.timeout(600)

SERVICES = ("orders", "billing")
SETTINGS = {"lease_s": LEASE_S, "poll_max_s": POLL_MAX_S, "crashes_max": CRASHES_MAX}


class TwoServices:
    """The two services with their databases; the buses of this process only publish."""

    def __init__(self, urls: dict[str, str], broker: str, workers: WorkerPool, loop: LoopThread) -> None:
        self.placed: list[int] = []
        self._urls, self._broker, self.crew, self._loop = urls, broker, workers, loop
        self._example = load_two_services()
        self._buses: dict[str, EventBus] = {}
        for name, url in urls.items():
            bus = getattr(self._example, f"{name}_service")(url, SparrowTransport(broker))
            schema = getattr(self._example, f"{name}_schema")
            loop.run(bus.prepare())
            loop.run(self._example.create_tables(bus, schema))
            self._buses[name] = bus

    def place_orders(self, count: int) -> None:
        for number in self._numbers(count):
            self._loop.run(self._example.place_order(self._buses["orders"], self._example.Order(number, number)))
            self.placed.append(number)

    def publisher_dies(self, point: str, count: int) -> None:
        """Kill the publisher while it places orders; the commits before the kill decide which orders exist."""
        numbers = self._numbers(count)
        assert self.crew.exit_status(self.start_worker("orders", dies_at=point, publishes=numbers)) == -signal.SIGKILL
        self.placed += numbers if point == "committed" else []

    def _numbers(self, count: int) -> list[int]:
        first = max(self.placed, default=0) + 1
        return list(range(first, first + count))

    def start_worker(self, service: str, **job: Any) -> int:
        return self.crew.start_worker(
            Job(database=self._urls[service], broker=self._broker, service=service, settings=SETTINGS, **job)
        )

    def read_effects(self) -> Any:
        return self._loop.run(self._example.read_books(self._buses["orders"], self._buses["billing"]))

    def open_count(self) -> int:
        return sum(self._loop.run(bus.database.run(lambda db, bus=bus: _open(db, bus))) for bus in self._buses.values())

    def payments(self) -> Counter[int]:
        """Return the number of payments of each order, from the billing database."""
        column = self._example.payments_table.c.order_number
        database = self._buses["billing"].database
        return Counter(self._loop.run(database.run(lambda db: list(db.execute(select(column)).scalars()))))

    def is_done(self) -> bool:
        books = self.read_effects()
        return books.orders == len(self.placed) and books.is_settled and self.open_count() == 0

    def close(self) -> None:
        for bus in self._buses.values():
            self._loop.run(bus.database.close())


def _open(db: Connection, bus: EventBus) -> int:
    return int(bus.core.context.sql.rows(db, f"SELECT COUNT(*) FROM {bus.core.context.sql.names.queue}")[0][0])


ON_SQLITE = pytest.param(("sqlite", "sqlite"), marks=pytest.mark.thorough)


@pytest.fixture(params=[ON_SQLITE, ("mariadb", "postgresql")], ids="-".join)
def services(
    request: pytest.FixtureRequest, database_servers, platform: RunningPlatform, worker_pool: WorkerPool, tmp_path: Path
) -> Iterator[TwoServices]:
    urls = {
        service: f"sqlite:///{tmp_path}/{service}.db" if name == "sqlite" else database_servers(name).new_database()
        for service, name in zip(SERVICES, request.param, strict=True)
    }
    loop = LoopThread("town")
    services = TwoServices(urls, platform.name_servers, worker_pool, loop)
    try:
        yield services
    finally:
        worker_pool.kill_all()
        services.close()
        loop.stop()


@pytest.mark.thorough
def test_services_killed_at_every_step_lose_no_order_and_pay_none_twice(
    services: TwoServices, scale: Literal["smoke", "full"]
) -> None:
    each, rounds = (3, 1) if scale == "smoke" else (30, 5)
    deaths = 0
    for _ in range(rounds):
        for victim, other in (SERVICES, SERVICES[::-1]):
            companion = services.start_worker(other)
            # The service that publishes inside its handler can also die there.
            for point in POINTS if victim == "orders" else (*POINTS, "written"):
                services.place_orders(each)
                assert services.crew.exit_status(services.start_worker(victim, dies_at=point)) == -signal.SIGKILL, (
                    victim,
                    point,
                )
                deaths += 1
            services.crew.stop_worker(companion)
        for point in PUBLISHER_POINTS:
            services.publisher_dies(point, each)
            deaths += 1
    for service in SERVICES:
        services.start_worker(service)
    poll_until(services.is_done, within_s=TIMEOUT_S)
    books = services.read_effects()
    print(f"{deaths} deaths, {books.orders} orders, {books.payments} payments")
    books.check()
    assert services.payments() == Counter(services.placed)
