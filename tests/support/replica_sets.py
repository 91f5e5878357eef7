"""Replica sets inside the test process, with a name server and a real etcd, and the commands that operate them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.json_output import decode_printed
from tests.support.wait import eventually
from typer.testing import CliRunner

from sparrow import Message, aio
from sparrow.cli.cluster.status import ReplicaSetReport
from sparrow.cli.main import app
from sparrow.client.aio.admin.topic_messages import read_topic
from sparrow.model.access.token import Credentials
from sparrow.model.errors import SparrowError, Unavailable
from sparrow.model.send_result import SendResult
from sparrow.nameserver.server import NameServer
from sparrow.replication.core.snapshot import Snapshot
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.server import ReplicaServer
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, ReplicationSettings

DEADLINE_S = 60
CLUSTER = "DefaultCluster"
_NAMES = itertools.count()


class CommandResult(NamedTuple):
    """What a command of `sparrow` did."""

    exit_code: int
    output: str
    error: BaseException | None


async def sparrow(*words: str) -> CommandResult:
    """Run a command of `sparrow` in a thread of this process."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    error = result.exception if isinstance(result.exception, SparrowError) else None
    if result.exception is not None and error is None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.exit_code, result.output, error)


class RunningSet:
    """A replica set: its servers by number. `folder/NUMBER` is the data folder of each."""

    def __init__(self, name: str, folder: Path, etcd_url: str, name_servers: str, **settings: Any) -> None:
        self.name, self.folder, self.etcd_url, self.name_servers = name, folder, etcd_url, name_servers
        self._settings = settings
        self.gateway = EtcdGateway([etcd_url])
        self.coordinator = EtcdCoordinator(self.gateway, CLUSTER, name, 0)
        self.servers: dict[int, ReplicaServer] = {}

    def server(self, number: int) -> ReplicaServer:
        """Return a server that is not started."""
        return ReplicaServer(
            BrokerSettings(name=self.name, port=0, name_servers=self.name_servers, **self._settings),
            self.folder / str(number) / "store",
            LogSettings(segment_bytes=1 << 20),
            # Longer than by default: this machine may be busy.
            ReplicationSettings(replica_id=number, lag_ms=3000),
            lambda own: EtcdCoordinator(self.gateway, CLUSTER, self.name, number, address=own, ttl_s=6),
        )

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.servers[number] = self.server(number)
            await self.servers[number].start()

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.servers.pop(number).stop()

    async def state(self) -> Snapshot:
        snapshot = await self.coordinator.read()
        assert snapshot is not None
        return snapshot

    async def leader(self, but: int | None = None) -> int:
        """Wait until a replica serves, another one than `but`; return its number."""
        found: list[int] = []

        def is_serving() -> bool:
            found[:] = [number for number, server in self.servers.items() if server.broker is not None]
            return len(found) == 1 and found[0] != but

        await eventually(is_serving, within_s=DEADLINE_S)
        return found[0]

    async def in_sync(self, *numbers: int) -> None:
        """Wait until exactly these replicas are in sync."""
        async with asyncio.timeout(DEADLINE_S):
            while set((await self.state()).state.in_sync) != set(numbers):
                await asyncio.sleep(0.05)

    async def command(self, *words: str) -> CommandResult:
        """Run a command of `sparrow cluster` for this set."""
        return await sparrow("cluster", *words, "--name", self.name, "--etcd", self.etcd_url)

    async def succeeds(self, *words: str) -> str:
        """Run a command that must succeed; return what it prints."""
        result = await self.command(*words)
        assert result.exit_code == 0, result
        return result.output

    async def status(self) -> ReplicaSetReport:
        found: ReplicaSetReport = decode_printed("cluster status", await self.succeeds("status", "--json"))
        return found

    async def close(self) -> None:
        await self.stop(*self.servers)
        await self.gateway.close()


@asynccontextmanager
async def running_set(
    etcd_url: str,
    folder: Path,
    members: Sequence[int] = (1, 2, 3),
    *,
    name_servers: str | None = None,
    name_server: NameServerSettings | None = None,
    is_started: bool = True,
    **settings: Any,
) -> AsyncIterator[RunningSet]:
    """Run a replica set, and a name server, with which it registers unless others are given.

    Other keyword arguments are settings of the brokers.
    """
    async with NameServer(name_server or NameServerSettings(port=0)) as own:
        registered_with = name_servers or str(own.address)
        running = RunningSet(f"set-{next(_NAMES)}", folder, etcd_url, registered_with, **settings)
        try:
            if is_started:
                await running.succeeds("init", "--members", ",".join(map(str, members)))
                await running.start(*members)
            yield running
        finally:
            await running.close()


async def send_surely(producer: aio.Producer, message: Message) -> SendResult:
    """Send a message until it is acknowledged: leaders may change."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await producer.send(message)
            except Unavailable:
                await asyncio.sleep(0.05)


class Load:
    """Sends messages until it is stopped, each until it is acknowledged; notes the longest pause between two."""

    def __init__(
        self, name_servers: str, topic: str = "orders", workers: int = 2, credentials: Credentials | None = None
    ) -> None:
        self._name_servers, self._topic, self._workers = name_servers, topic, workers
        self._credentials = credentials
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        self._is_over = False

    async def __aenter__(self) -> Load:
        self._producer = aio.Producer(self._name_servers, timeout_ms=2000, credentials=self._credentials)
        await self._producer.open()
        self._tasks = [asyncio.create_task(self._send(worker)) for worker in range(self._workers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._producer.close()

    async def _send(self, worker: int) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            body = f"{worker}-{number}"
            while True:
                try:
                    await self._producer.send(Message(self._topic, body))
                    break
                except SparrowError:
                    if self._is_over:
                        return
                    await asyncio.sleep(0.01)
            self.acknowledged.append(body)
            self.times.append(asyncio.get_running_loop().time())

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        target = len(self.acknowledged) + count
        await eventually(lambda: len(self.acknowledged) >= target, within_s=DEADLINE_S)

    @property
    def longest_pause_ms(self) -> float:
        return 1000 * max(later - earlier for earlier, later in itertools.pairwise(self.times))


async def read_all(name_servers: str, topic: str = "orders", credentials: Credentials | None = None) -> list[str]:
    """Return the bodies of all messages of a topic, of all its brokers."""
    async with aio.Admin(name_servers, credentials=credentials) as admin:
        return [message.body.decode() async for message in read_topic(admin.session, topic, group="checker")]
