"""Libraries that run tasks in the background: Sparrow's event bus, procrastinate and Celery.

Each puts tasks into its queue one by one, every one durable before the next, and then handles them in this process, 16
at a time. The handlers do nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from typing import Any, ClassVar

import uvloop
from bench.versus.packages import import_package
from bench.versus.peers.postgresql import PostgreSQL
from bench.versus.peers.redis import Redis
from bench.versus.peers.sparrow import Sparrow
from bench.versus.workload import SPARROW
from sqlalchemy.ext.asyncio import AsyncSession

from sparrow.bus.aio import EventBus

CONCURRENCY = 16
TIMEOUT_S = 300.0
EVENT = "versus.task"


class TaskQueue(ABC):
    name: ClassVar[str]
    description: str

    @abstractmethod
    def run(self, count: int) -> tuple[float, float]:
        """Enqueue tasks, then handle them; return the seconds of both."""


class BusQueue(TaskQueue):
    """The event bus: rows in PostgreSQL, relayed to a Sparrow broker and received from it."""

    name = SPARROW

    def __init__(self, database: PostgreSQL, broker: Sparrow) -> None:
        self._url, self._broker = database.address, f"sparrow://{broker.address}"
        self.description = f"event bus on PostgreSQL and a Sparrow broker, uvloop, {CONCURRENCY} handlers at a time"

    def run(self, count: int) -> tuple[float, float]:
        return uvloop.run(self._run(count))

    async def _run(self, count: int) -> tuple[float, float]:
        bus = EventBus(self._url, self._broker, app="versus", concurrency=CONCURRENCY)
        seen, done = 0, asyncio.Event()

        @bus.subscribe(EVENT)
        async def handle(_task: dict[str, Any]) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                done.set()

        await bus.prepare()
        begun = time.perf_counter()
        for number in range(count):
            async with AsyncSession(bus.database.async_engine) as session, session.begin():
                await bus.publish(EVENT, {"number": number}, session=session)
        enqueued = time.perf_counter()
        async with bus:
            await asyncio.wait_for(done.wait(), TIMEOUT_S)
            handled = time.perf_counter()
        return enqueued - begun, handled - enqueued


class ProcrastinateQueue(TaskQueue):
    """procrastinate: rows in PostgreSQL, no broker."""

    name = "procrastinate"

    def __init__(self, database: PostgreSQL, *, is_fetch_allowed: bool) -> None:
        self._library = import_package("procrastinate", is_fetch_allowed=is_fetch_allowed)
        self._url = database.other_address
        self._is_prepared = False
        self.description = f"{version('procrastinate')} on PostgreSQL with psycopg, uvloop, concurrency {CONCURRENCY}"

    def run(self, count: int) -> tuple[float, float]:
        return uvloop.run(self._run(count))

    async def _run(self, count: int) -> tuple[float, float]:
        app = self._library.App(connector=self._library.PsycopgConnector(conninfo=self._url))
        seen = 0

        @app.task(name=EVENT)
        async def handle(number: int) -> None:
            nonlocal seen
            seen += 1

        async with app.open_async():
            if not self._is_prepared:
                await app.schema_manager.apply_schema_async()
                self._is_prepared = True
            begun = time.perf_counter()
            for number in range(count):
                await handle.defer_async(number=number)
            enqueued = time.perf_counter()
            options = {"wait": False, "concurrency": CONCURRENCY, "install_signal_handlers": False}
            await asyncio.wait_for(app.run_worker_async(**options), TIMEOUT_S)
            assert seen == count, f"procrastinate handled {seen} of {count} tasks"
            return enqueued - begun, time.perf_counter() - enqueued


class CeleryQueue(TaskQueue):
    """Celery: a list in Redis, which syncs every write; a worker with threads, without results."""

    name = "Celery"

    def __init__(self, redis: Redis, *, is_fetch_allowed: bool) -> None:
        library = import_package("celery", is_fetch_allowed=is_fetch_allowed)
        self._app = library.Celery("versus", broker=redis.address)
        self._app.conf.update(task_ignore_result=True, task_acks_late=True, worker_hijack_root_logger=False)
        self.description = f"{library.__version__} on Redis, late acknowledgements, {CONCURRENCY} threads"
        self._seen = 0
        self._changed = threading.Condition()

        @self._app.task(name=EVENT)
        def handle(number: int) -> None:
            with self._changed:
                self._seen += 1
                self._changed.notify()

        self._task = handle

    def run(self, count: int) -> tuple[float, float]:
        from celery.contrib.testing.worker import start_worker

        self._seen = 0
        begun = time.perf_counter()
        for number in range(count):
            self._task.delay(number)
        enqueued = time.perf_counter()
        options = {"pool": "threads", "concurrency": CONCURRENCY, "perform_ping_check": False, "loglevel": "ERROR"}
        with start_worker(self._app, **options):
            with self._changed:
                assert self._changed.wait_for(lambda: self._seen >= count, TIMEOUT_S), f"{self._seen} of {count}"
            handled = time.perf_counter()
        return enqueued - begun, handled - enqueued
