"""The servers of a torture run, all of them processes: a name server, brokers behind proxies, perhaps a database.

Clients reach a broker only through its proxy: it listens on 127.0.0.1, and registers with the same port of 127.0.0.2.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.fault.torture.fault_proxy import FaultProxy
from tests.fault.torture.history import ClockSet, HistoryFile, now_ms
from tests.fault.torture.memory_disk import MemoryDisk, memory_disk
from tests.fault.torture.wall_clock import WallClock
from tests.support.databases import Server, _free_port, mariadb_server
from tests.support.server_processes import ENVIRONMENT, TIMEOUT_S, BrokerProcess

from sparrow.client.aio import Admin
from sparrow.model.errors import SparrowError
from sparrow.net import Address

StoreKind = Literal["log", "sqlite", "mariadb"]
PROXY_HOST = "127.0.0.2"
BROKER_NAME = "tortured"
LEASE_MS = 3_000
_STOP_S = 120.0
_BROKER_SETTINGS = {
    "advertised_host": PROXY_HOST,
    "register_interval_ms": 1_000,
    # Half messages are checked back soon, and never given up.
    "transaction_timeout_ms": 500,
    "transaction_check_interval_ms": 500,
    "transaction_scan_ms": 100,
    "transaction_checks_max": 10_000,
}
_STORE_SETTINGS = {
    # A full disk must not delete messages that nobody has read: only their age may.
    "SPARROW_LOG__DISK_CLEAN_RATIO": "1",
    "SPARROW_LOG__DISK_FORCE_RATIO": "1",
    # Often, so that kills hit checkpoints.
    "SPARROW_LOG__CHECKPOINT_INTERVAL_MS": "1000",
    "SPARROW_SQL__LEASE_MS": str(LEASE_MS),
}


class TorturedBroker(BrokerProcess):
    """A broker behind a proxy, with a wall clock of its own."""

    def __init__(
        self, number: int, folder: Path, data: Path, name_servers: str, rng: random.Random, **settings: object
    ):
        super().__init__(BROKER_NAME, data, name_servers, **_BROKER_SETTINGS, **settings)
        self.title, self.store = f"broker {number}", data / "store"
        self.log = folder / f"broker-{number}.log"
        self.clock = WallClock(folder / f"clock-{number}")
        self._environment |= _STORE_SETTINGS | self.clock.environment
        self.proxy = FaultProxy(Address(PROXY_HOST, self._port), self.address, rng)
        self.turn = asyncio.Lock()
        """Held by the fault that stops the process, or its clock: faults that overlap leave each other alone."""

    async def start_again(self) -> None:
        """Start the broker as a supervisor does: again, if it ends because its database is down."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    await self.start()
                    return
                except AssertionError:  # it has ended, and its log says why
                    await asyncio.sleep(0.1)

    async def end(self) -> None:
        """Let the broker shut down, and wait until it is gone: it saves offsets, perhaps in a slow database."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGUSR1)  # its log then shows what it waits for
            await asyncio.sleep(2)
            raise

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.returncode


class NameServerProcess:
    """A name server that restarts on its port."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self.address = f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        words = ["name-server", "--port", str(self._port), "--data", str(self._folder)]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sparrow", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while not (line := await self._process.stdout.readline()).startswith(b"ready"):
                assert line, "the name server ended unexpectedly"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@dataclass
class Platform:
    """Everything that clients use, and that faults hit."""

    store: StoreKind
    folder: Path
    """Where the brokers have their files: on a disk of its own, if that is permitted."""
    history: HistoryFile
    name_server: NameServerProcess
    brokers: list[TorturedBroker] = field(default_factory=list)
    disk: MemoryDisk | None = None
    """The disk that holds the messages, if the test can fill it."""
    database: Server | None = None
    database_proxy: FaultProxy | None = None

    @property
    def name_servers(self) -> str:
        return self.name_server.address

    @property
    def connections(self) -> int:
        """How many connections the brokers have."""
        return sum(broker.proxy.connections for broker in self.brokers)

    def set_clock(self, broker: TorturedBroker, offset_ms: int) -> None:
        broker.clock.set(offset_ms)
        self.history.write(ClockSet(broker.title, now_ms(), offset_ms))

    async def create_topics(self, topics: dict[str, int]) -> None:
        async with Admin(self.name_servers) as admin, asyncio.timeout(TIMEOUT_S):
            for topic, queues in topics.items():
                while True:
                    try:
                        await admin.create_topic(topic, queues)
                        break
                    except SparrowError:  # no broker has registered yet, or none leads
                        await asyncio.sleep(0.05)


@asynccontextmanager
async def running_platform(
    store: StoreKind, folder: Path, history: HistoryFile, rng: random.Random
) -> AsyncIterator[Platform]:
    """Run a name server, and one broker on a log or on SQLite, or two on one MariaDB."""
    async with AsyncExitStack() as stack:
        name_server = NameServerProcess(folder / "name-server")
        stack.push_async_callback(name_server.kill)
        await name_server.start()
        platform = Platform(store, folder / "disk", history, name_server)
        url = await _open_store(platform, stack, rng)
        settings = {} if url is None else {"store": url}
        for number in range(1, 3 if store == "mariadb" else 2):
            data = platform.folder / f"data-{number}"
            data.mkdir()
            broker = TorturedBroker(number, folder, data, name_server.address, random.Random(rng.random()), **settings)
            stack.push_async_callback(broker.stop)
            await stack.enter_async_context(broker.proxy)
            platform.set_clock(broker, 0)
            await broker.start()
            platform.brokers.append(broker)
        yield platform


async def _open_store(platform: Platform, stack: AsyncExitStack, rng: random.Random) -> str | None:
    """Mount the disk, and start the database; return the URL of an SQL store."""
    disk = stack.enter_context(memory_disk(platform.folder))
    if platform.store == "mariadb":
        platform.database = stack.enter_context(mariadb_server(innodb_flush_log_at_trx_commit=2))
        url = platform.database.new_database()
        address = Address("127.0.0.1", int(platform.database.url.rpartition(":")[2]))
        listens_at = Address("127.0.0.1", _free_port())
        platform.database_proxy = FaultProxy(listens_at, address, random.Random(rng.random()))
        await stack.enter_async_context(platform.database_proxy)
        return url.replace(str(address), str(listens_at))
    platform.disk = disk
    return f"sqlite:///{platform.folder}/sparrow.db" if platform.store == "sqlite" else None
