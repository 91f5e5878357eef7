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
from tests.support.processes import ENVIRONMENT
from tests.support.waiting import wait_until

from sparrow.bus import EventBus
from sparrow.bus.codec import headers as h
from sparrow.bus.transports.sparrow.message_format import topic_of
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.bus.transports.spi import Envelope
from sparrow.client import Admin

PATIENCE_S = 60.0
LOOK_S = 0.02
BATCH = 40
LEASE_S = 1.0
"""Short leases for tests that kill workers: rows of a dead worker are due again soon."""
CALM_LEASE_S = 60.0
POLL_MAX_S = 0.1
CRASHES_MAX = 1_000
"""High, because the tests kill the workers: no event is to fail because of its crash count."""
EFFECTS = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "id bigint AUTO_INCREMENT PRIMARY KEY",
    "postgresql": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


def until(claim: Callable[[], object], *, within_s: float = PATIENCE_S, look_s: float = LOOK_S) -> None:
    """Like `wait_until`, with a longer interval, because each check is a database query."""
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline, f"it did not come true within {within_s} s"
        time.sleep(look_s)


class Crew:
    """Starts workers and kills them."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, one, other = line.decode().split()
            (self._pids if word == "started" else self._ended)[int(one)] = int(other)

    def hire(self, job: Job) -> int:
        """Start a worker and return its process id; the worker needs a moment to begin."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        self._process.stdin.write(b"%d %s\n" % (number, msgspec.json.encode(job)))
        self._process.stdin.flush()
        wait_until(lambda: number in self._pids)
        return self._pids[number]

    def end(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        assert pid not in self._ended, f"worker {pid} ended by itself: {self._ended[pid]}"
        os.kill(pid, number)
        assert self.status(pid) == (-number if number == signal.SIGKILL else 0)

    def status(self, pid: int, *, within_s: float = PATIENCE_S) -> int:
        """Return the exit status after the worker has ended."""
        wait_until(lambda: pid in self._ended, within_s=within_s)
        return self._ended[pid]

    def dismiss(self) -> None:
        """Kill all remaining workers. Fail if a worker ended other than by a kill or by request."""
        for pid in self._pids.values():
            if pid not in self._ended:
                os.kill(pid, signal.SIGKILL)
        statuses = {pid: self.status(pid) for pid in self._pids.values()}
        self._pids.clear()
        self._ended.clear()
        assert set(statuses.values()) <= {0, -signal.SIGKILL}, statuses


@contextmanager
def crew() -> Iterator[Crew]:
    """Yield a crew that is ready; kill all its workers on exit."""
    process = subprocess.Popen(
        [sys.executable, str(Path(bus_worker.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        yield Crew(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


class Effect(NamedTuple):
    message: str
    n: int
    key: str
    group: str


class Tables:
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

    def successed(self, table: str) -> int:
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


class Place(NamedTuple):
    """The database, broker and crew of one test."""

    name: str
    tables: Tables
    crew: Crew
    seed: int

    def job(self, number: int, **more: Any) -> Job:
        """Return a job for a worker; each worker of a test gets its own number."""
        settings = {"lease_s": LEASE_S, "relay_batch": BATCH, "crashes_max": CRASHES_MAX, "poll_max_s": POLL_MAX_S}
        return Job(
            database=self.tables.url,
            broker=self.tables.broker,
            skips_locked=self.name != "mariadb-lease-only",
            seed=self.seed + number,
            settings=settings | more.pop("settings", {}),
            **more,
        )

    def say(self, **numbers: object) -> None:
        print(f"{self.name}, seed {self.seed}:", ", ".join(f"{name} {value}" for name, value in numbers.items()))


@contextmanager
def placed(name: str, url: str, broker: str, workers: Crew) -> Iterator[Place]:
    tables = Tables(url, broker)
    try:
        yield Place(name, tables, workers, random.SystemRandom().randrange(1 << 32))
    finally:
        workers.dismiss()
        tables.close()


def shares(total: int, count: int) -> list[int]:
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


class Sent(NamedTuple):
    """A message stored in the broker."""

    queue: int
    offset: int
    id: str
    value: dict[str, Any]


def place_in_queue(one: Sent) -> tuple[int, int]:
    return one.queue, one.offset


def sent_messages(broker: str) -> list[Sent]:
    """Return all stored messages of the topic, including repeats, queue by queue in offset order."""

    async def read() -> list[Sent]:
        transport = SparrowTransport(broker)
        found: list[Sent] = []
        try:
            await transport.open()
            listening = await transport.listen(f"readers-{random.getrandbits(40)}", [TOPIC], prefetch=1000)
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    deliveries = await listening.receive(1000)
                    for one in deliveries:
                        message = one.ack_handle[1]
                        said = msgspec.json.decode(one.body)
                        found.append(Sent(message.queue_id, message.queue_offset, one.headers[h.ID] or "", said))
                    await listening.acknowledge(deliveries)
        finally:
            await transport.close()
        return sorted(found, key=place_in_queue)

    with Admin(broker) as admin:
        count = sum(bounds.end - bounds.first for bounds in admin.topic_bounds(topic_of(TOPIC)).values())
    return asyncio.run(read())


# -- order ------------------------------------------------------------------------------------------------------------


def sent_out_of_order(sent: Iterable[Sent]) -> int:
    """Return messages that were sent out of order. Repeats are ignored: receivers drop them."""
    firsts = {one.id: one for one in sorted(sent, key=place_in_queue, reverse=True)}
    return _out_of_order((one.value["key"], one.value["n"]) for one in sorted(firsts.values(), key=place_in_queue))


def handled_out_of_order(effects: Iterable[Effect]) -> int:
    return _out_of_order((effect.key, effect.n) for effect in effects)


def _out_of_order(keyed: Iterable[tuple[str, int]]) -> int:
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in keyed:
        by_key[key].append(number)
    return sum(before > after for numbers in by_key.values() for before, after in pairwise(numbers))
