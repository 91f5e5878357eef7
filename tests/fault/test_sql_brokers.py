"""Three brokers on one MariaDB, killed or frozen under load: acknowledged messages are delivered, and no group restarts
from the beginning.

Two producers and two consumers of one group use the name server. In addition, each broker has a producer that uses only
this broker, and a reader that starts there and moves to the next broker after a kill. Each reader has its own group and
commits its progress. A broker saves commits a few times a second, so a kill may lose the last ones. A committed offset
that the database has shown is never lost: neither the database nor any broker may return a smaller one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.platforms import encode_properties, open_channel, pull, send_header
from tests.support.server_processes import BrokerProcess
from tests.support.sql_brokers import BROKER_NAME
from tests.support.tested_databases import database_server, databases_under_test
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model.errors import SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.model.priority import LANE_COUNT, Priority, read_queue_id
from sparrow.nameserver.server import NameServer
from sparrow.net import Channel
from sparrow.settings import NameServerSettings
from sparrow.store.sql.drivers.database import StoreDatabase, open_database
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.statements.state import offsets as offset_statements
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import CommitOffset, OffsetResponse, QueryOffset

TOPIC, GROUP = "orders", "billing"
PARTS = 2
QUEUES = PARTS * LANE_COUNT
BROKERS = 3
LEASE_MS = 1_000
GAP_S = LEASE_MS / 1000 + 5
"""Upper limit of the time after a kill in which no send by way of the name server succeeds: the lease, and what a busy
machine needs for the election. A client that waits for its next refresh of routes takes longer.
"""
SEND_MS = 2_000
"""The timeout of a send."""
SAVE_S = 20.0
"""Upper limit of the time until a commit is saved, unless its broker is killed: far more than a busy machine needs."""
WORDS = ("high", "middle", "low")
on_mariadb = pytest.mark.parametrize("database", databases_under_test("mariadb"))


class Place(NamedTuple):
    queue_id: int
    offset: int


class Commit(NamedTuple):
    """A commit that a broker has acknowledged."""

    when: float
    offset: int
    broker: Broker
    life: int
    """Which life of the broker: a kill ends it."""

    @property
    def may_be_lost(self) -> bool:
        return self.life != self.broker.life


@dataclass
class History:
    """The actions and observations of all clients."""

    acknowledged: dict[bytes, tuple[int, Place | None]] = field(default_factory=dict)
    """The sequence number of each producer's message, and its reported place."""
    stored: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The time of each acknowledgement, by producer."""
    seen: dict[str, list[tuple[Place, bytes]]] = field(default_factory=lambda: defaultdict(list))
    """Received messages of each group, in order."""
    unsaved: dict[tuple[str, int], list[Commit]] = field(default_factory=lambda: defaultdict(list))
    """By group and queue: commits of the readers that the database has not shown yet, in order."""
    saved: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """By group and queue: the highest offset that the database has shown."""
    longest_save_s: float = 0.0
    blows: list[float] = field(default_factory=list)
    """The times at which brokers were killed or frozen."""
    is_over: bool = False

    def shown(self, group: str, queue_id: int, offset: int) -> None:
        """Check an offset that the database shows, and record it."""
        key = group, queue_id
        who = f"{group} in queue {queue_id}"
        assert offset >= self.saved[key], f"{who} was saved at {self.saved[key]}, and is at {offset} in the database"
        self.saved[key] = offset
        self.unsaved[key] = [c for c in self.unsaved[key] if c.offset > offset and not c.may_be_lost]
        for commit in self.unsaved[key][:1]:
            self.longest_save_s = max(self.longest_save_s, time.monotonic() - commit.when)
            assert self.longest_save_s < SAVE_S, f"{who} is still at {offset}, {commit.offset} was committed long ago"


class Broker(BrokerProcess):
    """One of the brokers; it is restarted within a second after a kill."""

    def __init__(self, folder: Path, name_servers: str, url: str) -> None:
        super().__init__(BROKER_NAME, folder, name_servers, store=url)
        self._environment |= {"SPARROW_SQL__LEASE_MS": str(LEASE_MS)}
        self.is_up = False
        self.life = 0

    async def start(self) -> None:
        await super().start()
        self.is_up = True

    async def kill(self) -> None:
        self.is_up = False
        self.life += 1
        await super().kill()


# -- producers --------------------------------------------------------------------------------------------------------


async def produce_by_name_server(history: History, name: str, name_servers: str) -> None:
    async with Producer(name_servers, timeout_ms=SEND_MS, retries=20) as producer:
        number = 0
        while not history.is_over:
            body = f"{name} {number}".encode()
            number += 1
            try:
                result = await producer.send(Message(TOPIC, body, priority=WORDS[number % LANE_COUNT]))
            except SparrowError:  # stored or not: unknown
                await asyncio.sleep(0.01)
                continue
            history.acknowledged[body] = number, Place(result.queue_id, result.queue_offset)
            history.stored[name].append(time.monotonic())


async def produce_at(history: History, name: str, broker: Broker) -> None:
    """Repeat each message until it is stored; the broker answers a repeat with the place of the first copy."""
    number = 0
    while not history.is_over:
        with contextlib.suppress(SparrowError):
            async with open_channel(broker.address) as channel:
                while not history.is_over:
                    body = f"{name} {number}".encode()
                    words = encode_properties(
                        __PID=name, __SEQ=str(number), UNIQ_KEY=body.hex(), PRIORITY=WORDS[number % LANE_COUNT]
                    )
                    header = send_header(TOPIC, number % PARTS, words)
                    answer = await channel.request(RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=3_000)
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    sent = headers.read(headers.SendMessageResponse, answer.ext)
                    history.acknowledged[body] = number, Place(sent.queue_id, sent.queue_offset)
                    history.stored[name].append(time.monotonic())
                    number += 1
        await asyncio.sleep(0.02)


# -- consumers --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_consumer(history: History, name_servers: str) -> AsyncIterator[None]:
    async def handle(message: StoredMessage) -> None:
        history.seen[GROUP].append((Place(message.queue_id, message.queue_offset), message.body))

    async with Consumer(name_servers, group=GROUP, commit_interval_ms=200) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.start(handle, orderly=True)
        yield


class Reader:
    """Reads every queue of the topic from any live broker."""

    def __init__(self, history: History, brokers: Sequence[Broker], at: int) -> None:
        self._history, self._brokers, self._at = history, brokers, at
        self.group = f"reader-{at}"
        self.positions = [0] * QUEUES

    async def run(self) -> None:
        while True:
            broker = self._brokers[self._at % BROKERS]
            with contextlib.suppress(SparrowError):
                async with open_channel(broker.address) as channel:
                    await asyncio.gather(*(self._read(broker, channel, queue_id) for queue_id in range(QUEUES)))
            self._at += 1
            await asyncio.sleep(0.02)

    async def _read(self, broker: Broker, channel: Channel, queue_id: int) -> None:
        while True:
            answer = await pull(
                channel, TOPIC, queue_id, self.positions[queue_id], group=self.group, long_poll_ms=1_000
            )
            places = [Place(message.queue_id, message.queue_offset) for message in answer.messages]
            expected = range(self.positions[queue_id], self.positions[queue_id] + len(places))
            assert places == [Place(queue_id, offset) for offset in expected], "a queue has a gap or goes backwards"
            self._history.seen[self.group] += zip(places, answer.bodies, strict=True)
            if not places:
                continue
            self.positions[queue_id] += len(places)
            offset, life = self.positions[queue_id], broker.life
            header = CommitOffset(self.group, TOPIC, queue_id, offset)
            taken = await channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=3_000)
            if taken.code == ResponseCode.SUCCESS:
                commit = Commit(time.monotonic(), offset, broker, life)
                self._history.unsaved[self.group, queue_id].append(commit)


async def watch_progress(
    history: History, database: StoreDatabase, brokers: Sequence[Broker], groups: Sequence[str]
) -> None:
    """Query the groups' progress all the time, from the database and from any broker."""
    rng = random.Random(0)
    while True:
        await look_at_saved(history, database, groups)
        broker = rng.choice([broker for broker in brokers if broker.is_up])
        with contextlib.suppress(SparrowError):
            async with open_channel(broker.address) as channel:
                for group in groups:
                    for queue_id in range(QUEUES):
                        await assert_progress(history, channel, group, queue_id)
        await asyncio.sleep(0.05)


async def look_at_saved(history: History, database: StoreDatabase, groups: Sequence[str]) -> None:
    for part in range(PARTS):
        found = await database.fetch(offset_statements.select_offsets(table_name("offset", TOPIC, part)))
        offsets = {(group, read_queue_id(part, Priority[word.upper()])): offset for group, offset, word in found}
        for group in groups:
            for queue_id in (read_queue_id(part, priority) for priority in Priority):
                history.shown(group, queue_id, offsets.get((group, queue_id), 0))


async def assert_progress(history: History, channel: Channel, group: str, queue_id: int) -> None:
    least = history.saved[group, queue_id]
    header = QueryOffset(group, TOPIC, queue_id, False)
    answer = await channel.request(RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=3_000)
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        return  # the broker cannot answer at the moment
    found = headers.read(OffsetResponse, answer.ext).offset if answer.code == ResponseCode.SUCCESS else 0
    who = f"{group} in queue {queue_id}"
    assert found >= least, f"{who} was saved at {least}, but {channel.address} answers {found}"


# -- checks -----------------------------------------------------------------------------------------------------------


def assert_right(history: History, log: dict[Place, bytes]) -> None:
    """Compare the topic's messages with the acknowledgements and observations of all clients."""
    for body, (_, place) in history.acknowledged.items():
        assert place is not None
        assert log.get(place) == body, f"{place} holds {log.get(place)!r}, but {body!r} was acknowledged there"
    for group, seen in history.seen.items():
        missing = history.acknowledged.keys() - {body for _, body in seen}
        assert not missing, f"{group} did not receive {len(missing)} messages, for example {min(missing)!r}"
        wrong = [(place, body) for place, body in seen if log.get(place) != body]
        assert not wrong, f"{group} received messages that are not stored: {wrong[:3]}"
        assert_first_sights_in_order(group, seen)
    twice = [body for body, count in Counter(log.values()).items() if count > 1 and body.startswith(b"direct")]
    assert not twice, f"messages with a producer id were stored twice: {twice[:3]}"
    per_producer: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    for place, body in sorted(log.items()):
        if body in history.acknowledged:
            per_producer[body.rpartition(b" ")[0], place.queue_id].append(history.acknowledged[body][0])
    for (name, queue_id), numbers in per_producer.items():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"sequential messages of {name!r} are out of order in queue {queue_id}"


def assert_first_sights_in_order(group: str, seen: Sequence[tuple[Place, bytes]]) -> None:
    highest: dict[int, int] = {}
    known: set[Place] = set()
    for place, _ in seen:
        if place not in known:
            known.add(place)
            assert place.offset > highest.get(place.queue_id, -1), (
                f"{group} first received {place} after a later message"
            )
            highest[place.queue_id] = place.offset


def gaps_after(blows: Sequence[float], history: History, names: Sequence[str]) -> list[float]:
    """Return, for each kill until the next one, the longest time without an acknowledged send of these producers."""
    times = sorted(when for name in names for when in history.stored[name])
    found = []
    for blow, until in pairwise([*blows, blows[-1] + 30]):
        around = [when for when in times if blow - 0.5 < when < until]
        found.append(max((after - before for before, after in pairwise(around)), default=30.0))
    return found


async def read_everything(channel: Channel) -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}
    for queue_id in range(QUEUES):
        header = headers.QueueRequest(TOPIC, queue_id)
        answer = await channel.request(RequestCode.GET_MAX_OFFSET, header, timeout_ms=10_000)
        end, offset = headers.read(OffsetResponse, answer.ext).offset, 0
        while offset < end:
            messages = (await pull(channel, TOPIC, queue_id, offset, count=1_000)).messages
            assert messages, f"queue {queue_id} has no message at {offset}, but ends at {end}"
            found |= {Place(queue_id, message.queue_offset): message.body for message in messages}
            offset += len(messages)
    return found


# -- the test ---------------------------------------------------------------------------------------------------------


async def running_all(works: Sequence[Coroutine[Any, Any, None]], meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run all clients until `meanwhile` is done; a failure of any client ends the test at once."""
    tasks = [asyncio.create_task(work) for work in works]
    main = asyncio.ensure_future(meanwhile())
    waiting = {main, *tasks}
    try:
        while not main.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (main, *tasks):
            task.cancel()
        await asyncio.gather(main, *tasks, return_exceptions=True)


async def number_0(name_servers: str) -> str | None:
    """Return the leader's address from the name server."""
    async with Admin(name_servers) as admin:
        for cluster in (await admin.clusters()).values():
            return cluster.masters.get(BROKER_NAME)
    return None


class Cluster(NamedTuple):
    """Three brokers, a name server, and their clients."""

    name_servers: str
    brokers: Sequence[Broker]
    database: StoreDatabase
    history: History

    async def leader(self, otherwise: Broker) -> Broker:
        address = await number_0(self.name_servers)
        return next((broker for broker in self.brokers if str(broker.address) == address), otherwise)


@asynccontextmanager
async def running_cluster(folder: Path, database: str) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database_server(database)).new_database()
        name_server = NameServer(NameServerSettings(port=0), kv_path=folder / "naming.json")
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        name_servers = str(name_server.address)
        brokers = [Broker(folder / f"broker-{at}", name_servers, url) for at in range(BROKERS)]
        for broker in brokers:
            await broker.start()
            stack.push_async_callback(broker.stop)
        async with Admin(name_servers) as admin:
            await admin.create_topic(TOPIC, PARTS)
        for broker in brokers:
            async with open_channel(broker.address) as channel:
                await knows_the_topic(channel)
        opened = await open_database(url)
        stack.push_async_callback(opened.close)
        yield Cluster(name_servers, brokers, opened, History())


async def knows_the_topic(channel: Channel) -> None:
    async with asyncio.timeout(30):
        while (
            await channel.request(RequestCode.GET_TOPIC_CONFIG, headers.TopicRequest(TOPIC))
        ).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)


async def under_load(cluster: Cluster, hurting: Callable[[], Awaitable[None]], *, gap_s: float) -> None:
    """Run clients while brokers are killed and afterwards; check the history."""
    history, brokers = cluster.history, cluster.brokers
    readers = [Reader(history, brokers, at) for at in range(BROKERS)]
    by_name = [f"named-{at}" for at in range(2)]
    direct = [f"direct-{at}" for at in range(BROKERS)]

    async def hurt_and_settle() -> None:
        await hurting()
        await asyncio.sleep(LEASE_MS / 1000 * 2)
        history.is_over = True
        await asyncio.sleep(0.1)
        everybody = [GROUP, *(reader.group for reader in readers)]

        def is_seen() -> bool:
            wanted = history.acknowledged.keys()
            return all(wanted <= {body for _, body in history.seen[group]} for group in everybody)

        with contextlib.suppress(AssertionError):  # the checks below report missing messages
            await eventually(is_seen, within_s=40)
        await eventually(lambda: not any(history.unsaved.values()), within_s=SAVE_S)

    async with running_consumer(history, cluster.name_servers), running_consumer(history, cluster.name_servers):
        await running_all(
            [
                *(produce_by_name_server(history, name, cluster.name_servers) for name in by_name),
                *(produce_at(history, name, broker) for name, broker in zip(direct, brokers, strict=True)),
                *(reader.run() for reader in readers),
                watch_progress(history, cluster.database, brokers, [reader.group for reader in readers]),
            ],
            hurt_and_settle,
        )
    async with open_channel(brokers[0].address) as channel:
        log = await read_everything(channel)
    delivered = history.seen[GROUP]
    gaps, direct_gaps = gaps_after(history.blows, history, by_name), gaps_after(history.blows, history, direct)
    print(
        f"{len(history.blows)} times; {len(history.acknowledged)} acknowledged, {len(log)} stored;"
        f" {GROUP} got {len(delivered)}, {len(delivered) - len({place for place, _ in delivered})} of them repeats;"
        f" longest gap {max(gaps):.2f} s through the name server, {max(direct_gaps):.2f} s to any broker;"
        f" commits saved within {history.longest_save_s:.2f} s;"
        f" gaps {' '.join(f'{gap:.2f}' for gap in gaps)}"
    )
    assert_right(history, log)
    assert len(history.acknowledged) > 200, "too few messages were sent for a meaningful result"
    assert max(gaps) < gap_s, f"nothing was stored for {max(gaps):.2f} s, {gap_s} s are allowed"


def seeded() -> random.Random:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    return random.Random(seed)


@pytest.mark.thorough
@pytest.mark.timeout(1_800)
@on_mariadb
async def test_brokers_killed_in_turn_lose_no_acknowledged_message_and_no_committed_offset(
    tmp_path: Path, scale: str, database: str
) -> None:
    rng = seeded()
    seconds, kills_min = (120, 20) if scale == "full" else (5, 2)
    async with running_cluster(tmp_path, database) as cluster:

        async def kill_in_turn() -> None:
            begun, turn = time.monotonic(), 0
            while time.monotonic() - begun < seconds or turn < kills_min:
                await asyncio.sleep(rng.uniform(1.5, 3))
                target = cluster.brokers[turn % BROKERS]
                if turn % 2 == 0:  # every other time the leader, out of turn
                    target = await cluster.leader(target)
                turn += 1
                await target.kill()
                cluster.history.blows.append(time.monotonic())
                await asyncio.sleep(rng.choice((0, 0.3, 2.5)))
                await target.start()

        await under_load(cluster, kill_in_turn, gap_s=GAP_S)


@pytest.mark.thorough
@pytest.mark.timeout(1_800)
@on_mariadb
async def test_a_leader_that_freezes_and_resumes_changes_nothing(tmp_path: Path, scale: str, database: str) -> None:
    """It still considers itself the leader and holds commits that are older than those of other brokers."""
    rng = seeded()
    async with running_cluster(tmp_path, database) as cluster:

        async def freeze_leaders() -> None:
            for turn in range(20 if scale == "full" else 1):
                await asyncio.sleep(rng.uniform(1.5, 3))
                target = await cluster.leader(cluster.brokers[turn % BROKERS])
                target.is_up = False
                target.signal(signal.SIGSTOP)
                cluster.history.blows.append(time.monotonic())
                await asyncio.sleep(rng.uniform(1.5, 4) * LEASE_MS / 1000)
                target.signal(signal.SIGCONT)
                target.is_up = True

        # Connections to it do not break: senders notice it by timeout only.
        await under_load(cluster, freeze_leaders, gap_s=GAP_S + SEND_MS / 1000)
