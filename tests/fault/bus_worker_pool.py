"""Bus workers in separate processes, and checks of their effects on the tables and on the broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, text
from tests.fault import bus_worker
from tests.fault.bus_worker import TOPIC, Job
from tests.support.server_processes import ENVIRONMENT
from tests.support.wait import wait_until

from sparrow.bus import EventBus
from sparrow.bus.codec import headers as h
from sparrow.bus.transports.sparrow.message_format import topic_of
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.bus.transports.spi import Envelope
from sparrow.client import Admin

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02
BATCH = 40
LEASE_S = 1.0
"""Short leases for tests that kill workers: rows of a dead worker are due again soon."""
LONG_LEASE_S = 60.0
POLL_MAX_S = 0.1
CRASHES_MAX = 1_000
"""High, because the tests kill the workers: no event is to fail because of its crash count."""
EFFECTS = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "id bigint AUTO_INCREMENT PRIMARY KEY",
    "postgresql": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


def poll_until(
    condition: Callable[[], object], *, within_s: float = TIMEOUT_S, interval_s: float = POLL_INTERVAL_S
) -> None:
    """Like `wait_until`, with a longer interval, because each check is a database query."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {within_s} s"
        time.sleep(interval_s)


class WorkerPool:
    """Starts workers and kills them."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._pids: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, one, other = line.decode().split()
            {"started": self._pids, "ready": self._ready, "ended": self._ended}[word][int(one)] = int(other)

    def start_worker(self, job: Job) -> int:
        """Start a worker and return its process id; the worker needs a moment to begin."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        self._process.stdin.write(b"%d %s\n" % (number, msgspec.json.encode(job)))
        self._process.stdin.flush()
        wait_until(lambda: number in self._pids, within_s=60)  # on a busy machine
        return self._pids[number]

    def start_workers(self, *jobs: Job) -> None:
        """Start workers and wait until the buses of all of them run."""
        pids = [self.start_worker(job) for job in jobs]
        wait_until(lambda: self._ready.keys() >= set(pids), within_s=TIMEOUT_S)

    def stop_worker(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        assert pid not in self._ended, f"worker {pid} ended unexpectedly: {self._ended[pid]}"
        os.kill(pid, number)
        assert self.exit_status(pid) == (-number if number == signal.SIGKILL else 0)

    def exit_status(self, pid: int, *, within_s: float = TIMEOUT_S) -> int:
        """Return the exit status after the worker has ended."""
        wait_until(lambda: pid in self._ended, within_s=within_s)
        return self._ended[pid]

    def kill_all(self) -> None:
        """Kill all remaining workers. Fail if a worker ended other than by a kill or by request."""
        for pid in self._pids.values():
            if pid not in self._ended:
                os.kill(pid, signal.SIGKILL)
        statuses = {pid: self.exit_status(pid) for pid in self._pids.values()}
        self._pids.clear()
        self._ready.clear()
        self._ended.clear()
        assert set(statuses.values()) <= {0, -signal.SIGKILL}, statuses


@contextmanager
def running_worker_pool() -> Iterator[WorkerPool]:
    """Yield a crew that is ready; kill all its workers on exit."""
    process = subprocess.Popen(
        [sys.executable, str(Path(bus_worker.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        yield WorkerPool(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


class Effect(NamedTuple):
    message: str
    n: int
    key: str
    group: str


class BusDatabase:
    """A database as seen by a test, and a bus on it that only publishes."""

    def __init__(self, url: str, broker: str) -> None:
        self.url, self.broker = url, broker
        self.bus = EventBus(url, SparrowTransport(broker), app="fault")
        self.bus.prepare()
        columns = "message varchar(64) NOT NULL, n int NOT NULL, order_key varchar(64) NOT NULL, grp varchar(200)"
        self.run(lambda db: db.execute(text(f"CREATE TABLE effects ({EFFECTS[self.bus.database.kind]}, {columns})")))

    def run(self, work: Any) -> Any:
        return self.bus.database.run_blocking(work)

    def publish(self, first: int, count: int, *, keys: int = 0) -> None:
        """Publish numbered events in one transaction."""
        self.bus.publish_many([self._event(number, keys) for number in range(first, first + count)])

    @staticmethod
    def _event(number: int, keys: int) -> tuple[Any, ...]:
        if not keys:
            return TOPIC, {"n": number}
        key = f"key-{number % keys}"
        return TOPIC, {"n": number, "key": key}, key

    # -- queries ------------------------------------------------------------------------------------------------------

    def count(self, condition: str, table: str = "queue", **values: Any) -> int:
        name = getattr(self._sql.names, table)

        def work(db: Connection) -> int:
            return int(self._sql.rows(db, f"SELECT COUNT(*) FROM {name} WHERE {condition}")[0][0])

        return int(self.run(work))

    def open_count(self) -> int:
        return self.count("1 = 1")

    def unsent_count(self) -> int:
        return self.count('"MessageType" = 0')

    def succeeded_count(self, table: str) -> int:
        return self.count("\"StatusName\" = 'Successed'", table)

    def effects(self) -> list[Effect]:
        """Return the effects in the order of their insertion."""
        found = self.run(
            lambda db: db.execute(text("SELECT message, n, order_key, grp FROM effects ORDER BY id")).all()
        )
        return [Effect(*row) for row in found]

    def effect_count(self) -> int:
        return int(self.run(lambda db: db.execute(text("SELECT COUNT(*) FROM effects")).scalar_one()))

    @property
    def _sql(self) -> Any:
        # Blocking drivers use their own parameter style; these statements have no parameters.
        return self.bus.core.context.sql_for(self.bus.database.kind, self.bus.database.engine.dialect.paramstyle)

    def close(self) -> None:
        asyncio.run(self.bus.database.close())


class BusSetup(NamedTuple):
    """The database, broker and crew of one test."""

    name: str
    tables: BusDatabase
    workers: WorkerPool
    seed: int

    def job(self, number: int, **more: Any) -> Job:
        """Return a job for a worker; each worker of a test gets its own number."""
        settings = {"lease_s": LEASE_S, "relay_batch": BATCH, "crashes_max": CRASHES_MAX, "poll_max_s": POLL_MAX_S}
        return Job(
            database=self.tables.url,
            broker=self.tables.broker,
            skips_locked=not self.name.endswith("-lease-only"),
            seed=self.seed + number,
            settings=settings | more.pop("settings", {}),
            **more,
        )

    def print_numbers(self, **numbers: object) -> None:
        print(f"{self.name}, seed {self.seed}:", ", ".join(f"{name} {value}" for name, value in numbers.items()))


@contextmanager
def bus_setup(name: str, url: str, broker: str, workers: WorkerPool) -> Iterator[BusSetup]:
    tables = BusDatabase(url, broker)
    try:
        yield BusSetup(name, tables, workers, random.SystemRandom().randrange(1 << 32))
    finally:
        workers.kill_all()
        tables.close()


def split_evenly(total: int, count: int) -> list[int]:
    """Split the total into this many parts."""
    return [total * (part + 1) // count - total * part // count for part in range(count)]


# -- the broker -------------------------------------------------------------------------------------------------------


def deliver_twice(broker: str, first: int, count: int) -> None:
    """Send each event twice, like relays that died before they marked rows as sent."""

    async def deliver() -> None:
        transport = SparrowTransport(broker)
        envelopes = [
            Envelope(
                name=TOPIC,
                headers={h.ID: str(number + 1), h.NAME: TOPIC},
                body=msgspec.json.encode({"n": number}),
                added=datetime.now(UTC),
            )
            for number in range(first, first + count)
        ]
        try:
            await transport.open()
            for _ in range(2):
                outcomes = await transport.send(envelopes)
                assert not any(outcomes), outcomes
        finally:
            await transport.close()

    asyncio.run(deliver())


class SentMessage(NamedTuple):
    """A message stored in the broker."""

    queue: int
    offset: int
    id: str
    value: dict[str, Any]


def queue_position(one: SentMessage) -> tuple[int, int]:
    return one.queue, one.offset


def read_sent_messages(broker: str) -> list[SentMessage]:
    """Return all stored messages of the topic, including repeats, queue by queue in offset order."""

    async def read() -> list[SentMessage]:
        transport = SparrowTransport(broker)
        found: list[SentMessage] = []
        try:
            await transport.open()
            listening = await transport.listen(f"readers-{random.getrandbits(40)}", [TOPIC], prefetch=1000)
            async with asyncio.timeout(TIMEOUT_S):
                while len(found) < count:
                    deliveries = await listening.receive(1000)
                    for one in deliveries:
                        message = one.ack_handle[1]
                        said = msgspec.json.decode(one.body)
                        found.append(SentMessage(message.queue_id, message.queue_offset, one.headers[h.ID] or "", said))
                    await listening.acknowledge(deliveries)
        finally:
            await transport.close()
        return sorted(found, key=queue_position)

    with Admin(broker) as admin:
        count = sum(bounds.end - bounds.first for bounds in admin.topic_bounds(topic_of(TOPIC)).values())
    return asyncio.run(read())


# -- order ------------------------------------------------------------------------------------------------------------


def count_sent_out_of_order(sent: Iterable[SentMessage]) -> int:
    """Return messages that were sent out of order. Repeats are ignored: receivers drop them."""
    firsts = {one.id: one for one in sorted(sent, key=queue_position, reverse=True)}
    return _count_out_of_order(
        (one.value["key"], one.value["n"]) for one in sorted(firsts.values(), key=queue_position)
    )


def count_handled_out_of_order(effects: Iterable[Effect]) -> int:
    return _count_out_of_order((effect.key, effect.n) for effect in effects)


def _count_out_of_order(keyed: Iterable[tuple[str, int]]) -> int:
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in keyed:
        by_key[key].append(number)
    return sum(before > after for numbers in by_key.values() for before, after in pairwise(numbers))
