"""Topic to Spark to topic under kills: each input message appears in the output exactly once.

Queries read growing topics, with and without a shuffle, on a log store and on a SQL store, and write to other topics.
Drivers, Python workers and brokers are killed at random moments, drivers also at the worst one: after the broker has
published a batch and before Spark has recorded it. Then the topics are compared: no message is missing, none is
doubled, and the messages of a key are in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fault.spark_driver import Orders, Plan
from tests.fault.spark_driver_process import COMMITS, Checkpoint, Driver, kill
from tests.support.databases import mariadb_server
from tests.support.server_processes import BrokerProcess
from tests.support.wait import eventually

from sparrow.client.aio import Admin, ClientSession, Consumer, Producer
from sparrow.client.aio.produce import staging
from sparrow.model.errors import SparrowError
from sparrow.model.message import Message
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.wire.bodies import QueueRef

LOG, SQL = "log", "sql"
"""Brokers, by their kind of store."""
QUEUES = 2
KEYS_A_QUEUE = 5
FEED_S, FEED_ROWS = 0.05, 10
PATIENCE_S = 400.0
"""Time for a driver to start and to catch up: a busy machine takes ten times as long as an idle one."""
DELAY_MAX_S = 5.0
LEASE_MS = 3_000
LOOK_S = 0.005
LOOK_AT_PROCESSES_S = 0.05
"""Longer, because a look at all processes of the machine takes CPU time from Spark."""
SPARK_GAVE_UP = "Python worker failed to connect back"
"""Spark's error when a process does not start within ten seconds, a fixed limit. The next driver tries again."""
GIVEN_UP_MAX = 5
BATCHES_MIN = 3
"""Minimum number of batches of each query: with fewer, kills would prove little."""


class Fault(StrEnum):
    """The process to kill."""

    DRIVER = "driver"
    """JVM and Python processes, at a random moment."""
    ORPHANS = "driver but not its workers"
    """The Python processes notice the JVM's death later, at different times."""
    PUBLISHED = "driver between publishing and noting it"
    WORKER = "worker"
    """The worker of a task; Spark repeats the task."""
    COMMITTER = "commit process"
    """A daemon: if it was busy, the query fails and the driver ends."""
    LOG_BROKER = "broker on a log"
    SQL_BROKER = "broker on a database"


BROKER_OF = {Fault.LOG_BROKER: LOG, Fault.SQL_BROKER: SQL}
SMOKE = (Fault.PUBLISHED, Fault.WORKER)
"""The kills at smoke scale, besides the kill of one broker."""


def draw_faults(rng: random.Random, scale: str) -> list[Fault]:
    """Return each kind at least once (at smoke scale: the main kinds), in random order."""
    if scale == "smoke":
        chosen = [*SMOKE, rng.choice(list(BROKER_OF))]
    else:
        chosen = [*Fault, *rng.choices(list(Fault), k=20 - len(Fault))]
    rng.shuffle(chosen)
    return chosen


class Broker(BrokerProcess):
    def __init__(self, name: str, folder: Path, name_servers: str, **settings: object) -> None:
        super().__init__(name, folder, name_servers, **settings)
        self._environment |= {"SPARROW_SQL__LEASE_MS": str(LEASE_MS)}


# -- setup ------------------------------------------------------------------------------------------------------------


@dataclass
class SparkSetup:
    """Brokers, queries and the producers of their input."""

    name_servers: str
    brokers: dict[str, Broker]
    plans: list[Plan]
    driver: Driver
    session: ClientSession
    rng: random.Random
    is_fed: bool = True
    faults: Counter[Fault] = field(default_factory=Counter)
    replayed: int = 0
    """Batches that Spark had begun and not recorded when its driver died."""
    refused: int = 0
    """Those batches of them that the broker had published: it must refuse their repeats."""
    given_up: int = 0
    """How often Spark gave up because the machine was busy."""
    failed: int = 0
    """How often a query failed because the committing process was killed."""

    async def until(self, claim: Callable[[], object], *, look_s: float = LOOK_S) -> None:
        """Wait for a condition; the driver must stay alive meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < deadline, f"the condition was not met within {PATIENCE_S} s:\n{self.driver.said}"
            await self.check_driver()
            await asyncio.sleep(look_s)

    async def check_driver(self) -> None:
        """Assert that the driver still runs, unless Spark could not start its processes in time."""
        if self.driver.is_running:
            return
        said = self.driver.said
        assert SPARK_GAVE_UP in said, f"the driver ended unexpectedly:\n{said}"
        self.given_up += 1
        assert self.given_up < GIVEN_UP_MAX, "the machine is too busy for Spark"
        await self.start_again()

    async def start_again(self) -> None:
        for plan in self.plans:
            checkpoint = Checkpoint(plan)
            self.replayed += checkpoint.planned > checkpoint.committed
            self.refused += await self.ledger(plan) > checkpoint.committed
        await self.driver.start()

    async def ledger(self, plan: Plan) -> int:
        """Return the last published batch; -1: none."""
        query_id = Checkpoint(plan).query_id
        if query_id is None or plan.delivery != "exactlyOnce":
            return -1
        scope = f"{query_id}/{plan.target}"
        address = str(self.brokers[plan.broker].address)
        found = await staging.query_ledger(self.session, address, scope, timeout_ms=10_000)
        return -1 if found is None else found


@asynccontextmanager
async def running_setup(folder: Path, rng: random.Random, scale: str) -> AsyncIterator[SparkSetup]:
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{folder}/sparrow.db"
        if scale == "full":
            url = stack.enter_context(mariadb_server()).new_database()
        name_server = NameServer(NameServerSettings(port=0), kv_path=folder / "naming.json")
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        name_servers = str(name_server.address)
        brokers = {
            LOG: Broker(LOG, folder / LOG, name_servers),
            SQL: Broker(SQL, folder / SQL, name_servers, store=url),
        }
        for broker in brokers.values():
            stack.push_async_callback(broker.stop)
            await broker.start()
        plans = planned(folder, scale)
        async with Admin(name_servers) as admin:
            for plan in plans:
                for topic in (plan.source, plan.target):
                    await admin.create_topic(topic, QUEUES, brokers=[plan.broker])
        orders = folder / "orders.json"
        orders.write_bytes(msgspec.json.encode(Orders(name_servers, plans)))
        driver = Driver(folder, orders)
        stack.push_async_callback(driver.stop)
        # The session uses broker addresses without routes; its maintenance would close such connections.
        session = await stack.enter_async_context(ClientSession(name_servers, maintenance_interval_ms=3_600_000))
        yield SparkSetup(name_servers, brokers, plans, driver, session, rng)


def planned(folder: Path, scale: str) -> list[Plan]:
    def plan(broker: str, kind: str, **how: Any) -> Plan:
        name = f"{broker}_{kind}"
        return Plan(name=name, broker=broker, source=f"{broker}_in", target=name, checkpoint=f"{folder}/{name}", **how)

    found = [plan(LOG, "shuffled", is_shuffled=True), plan(SQL, "row_by_row")]
    if scale == "full":
        found += [plan(LOG, "row_by_row"), plan(SQL, "shuffled", is_shuffled=True)]
        found += [plan(LOG, "idempotent", delivery="idempotent")]
    return found


async def feed(setup: SparkSetup, topic: str, broker: str) -> None:
    """Send messages and count each stored one: a send repeated without an answer may store two messages."""
    number = 0
    async with Producer(setup.name_servers, timeout_ms=1_000) as producer:
        while setup.is_fed:
            queue_id = number // KEYS_A_QUEUE % QUEUES
            key = f"{queue_id}-{number % KEYS_A_QUEUE}"
            number += 1
            messages = [Message(topic, b"", keys=key)] * FEED_ROWS
            try:
                await producer.send_batch(messages, queue=QueueRef(topic, broker, queue_id))
            except SparrowError:  # the broker is down
                pass
            await asyncio.sleep(FEED_S)  # spreads the messages over many batches; waits for nothing


# -- kills ------------------------------------------------------------------------------------------------------------


async def inject_fault(setup: SparkSetup, fault: Fault) -> None:
    setup.faults[fault] += 1
    match fault:
        case Fault.WORKER:
            await wait_random_moment(setup, setup.plans)
            await setup.until(setup.driver.workers, look_s=LOOK_AT_PROCESSES_S)
            kill(setup.rng.choice(setup.driver.workers()))
        case Fault.LOG_BROKER | Fault.SQL_BROKER:
            broker = setup.brokers[BROKER_OF[fault]]
            await wait_random_moment(setup, [plan for plan in setup.plans if plan.broker == broker.name])
            await broker.kill()
            await asyncio.sleep(setup.rng.choice((0, 0.3, 2)))
            await broker.start()
        case Fault.DRIVER | Fault.ORPHANS:
            await wait_random_moment(setup, setup.plans)
            await setup.driver.kill(orphans=fault == Fault.ORPHANS)
            await setup.start_again()
        case Fault.COMMITTER:
            await setup.until(lambda: setup.driver.workers(COMMITS), look_s=LOOK_AT_PROCESSES_S)
            await wait_random_moment(setup, setup.plans)
            for pid in setup.driver.workers(COMMITS):
                kill(pid)
            await failed_or_went_on(setup)
        case Fault.PUBLISHED:
            await kill_when_published(setup)
            await setup.start_again()


async def failed_or_went_on(setup: SparkSetup) -> None:
    before = {plan.name: Checkpoint(plan).planned for plan in setup.plans}

    def is_clear() -> bool:
        if not setup.driver.is_running:
            return True
        return all(Checkpoint(plan).planned > before[plan.name] for plan in setup.plans)

    await eventually(is_clear, within_s=PATIENCE_S)
    if not setup.driver.is_running:
        setup.failed += 1
        await setup.start_again()


async def wait_random_moment(setup: SparkSetup, plans: Sequence[Plan]) -> None:
    """Wait for a random moment of a new batch, or of a batch that a driver repeats soon after its start."""
    checkpoint = Checkpoint(setup.rng.choice(plans))
    if setup.rng.random() < 0.3:
        await setup.until(setup.driver.workers, look_s=LOOK_AT_PROCESSES_S)
    else:
        before = checkpoint.planned
        await setup.until(lambda: checkpoint.planned > before)
    await asyncio.sleep(setup.rng.uniform(0, min(1.2 * checkpoint.took_s, DELAY_MAX_S)))


async def kill_when_published(setup: SparkSetup) -> None:
    """Kill the driver at the worst moment. If Spark has already recorded the batch, wait for the next batch."""
    plan = setup.rng.choice([plan for plan in setup.plans if plan.delivery == "exactlyOnce"])
    checkpoint = Checkpoint(plan)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline, "no batch was found between publishing and its commit record"
        await setup.check_driver()
        published = await setup.ledger(plan)
        if published > checkpoint.committed:
            await setup.driver.kill()
            if published > checkpoint.committed:
                return
            await setup.start_again()
        await asyncio.sleep(LOOK_S)


# -- final checks -----------------------------------------------------------------------------------------------------


async def contents(setup: SparkSetup, topic: str) -> list[dict[str, Any]]:
    """Return the messages in queue order."""
    columns = ("body", "keys", "queue_id", "queue_offset")
    async with Consumer(setup.name_servers, group="readers") as consumer:
        rows = (await consumer.read_table(topic, columns=columns)).to_pylist()
    return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))


async def ends(setup: SparkSetup, topic: str) -> dict[int, int]:
    """Return the end offsets of non-empty queues, in the form of checkpoints."""
    return {row["queue_id"]: row["queue_offset"] + 1 for row in await contents(setup, topic)}


async def assert_exactly_once(setup: SparkSetup, plan: Plan) -> int:
    """Assert that input and output are equal; return the number of messages."""
    key_of = {f"{row['queue_id']}:{row['queue_offset']}": row["keys"] for row in await contents(setup, plan.source)}
    found = await contents(setup, plan.target)
    times = Counter(row["body"].decode() for row in found)
    missing, doubled = key_of.keys() - times.keys(), [body for body, count in times.items() if count > 1]
    assert not missing, (
        f"{plan.name}: {len(missing)} of {len(key_of)} messages are missing, for example {sorted(missing)[:5]}"
    )
    assert not doubled, (
        f"{plan.name}: {len(doubled)} of {len(key_of)} messages were written twice, for example {sorted(doubled)[:5]}"
    )
    assert times.keys() == key_of.keys(), f"{plan.name}: {sorted(times.keys() - key_of.keys())[:5]} were never sent"
    route = await setup.session.route(plan.target, is_fresh=True)
    homes = {queue.broker_name for queue in route.write_queues}
    assert homes == {plan.broker}, f"{plan.name}: its topic was created on {homes} while {plan.broker} was down"
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in found:
        body = row["body"].decode()
        assert row["keys"] == key_of[body], f"{plan.name}: {body} has another key"
        places[row["keys"]].append((row["queue_id"], int(body.partition(":")[2])))
    for key, its in places.items():
        assert len({queue_id for queue_id, _ in its}) == 1, f"{plan.name}: key {key} is in several queues"
        offsets = [offset for _, offset in its]
        assert offsets == sorted(offsets), f"{plan.name}: messages of key {key} are out of order"
    return len(found)


# -- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.timeout(3_600)
async def test_each_message_is_written_exactly_once_under_kills_of_any_process(tmp_path: Path, scale: str) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    rng = random.Random(seed)
    begun = time.monotonic()
    async with running_setup(tmp_path, rng, scale) as setup:
        sources = {plan.source: plan.broker for plan in setup.plans}
        async with asyncio.TaskGroup() as feeding:
            for topic, broker in sources.items():
                feeding.create_task(feed(setup, topic, broker))
            await setup.driver.start()
            for fault in draw_faults(rng, scale):
                await inject_fault(setup, fault)
                print(f"{time.monotonic() - begun:6.1f} s: killed {fault}", flush=True)
            await setup.until(lambda: all(Checkpoint(plan).committed + 1 >= BATCHES_MIN for plan in setup.plans))
            setup.is_fed = False
        wanted = {topic: await ends(setup, topic) for topic in sources}
        await setup.until(lambda: all(Checkpoint(plan).read_until() == wanted[plan.source] for plan in setup.plans))
        await setup.driver.stop()  # with all processes of earlier drivers: from here on no process writes
        rows = {plan.name: await assert_exactly_once(setup, plan) for plan in setup.plans}
        batches = {plan.name: Checkpoint(plan).committed + 1 for plan in setup.plans}
        print(
            f"{setup.faults.total()} kills ({', '.join(f'{count} {fault}' for fault, count in setup.faults.items())}), "
            f"{setup.driver.runs} runs ({setup.failed} failed), {setup.replayed} batches replayed, "
            f"{setup.refused} of them refused, {time.monotonic() - begun:.0f} s\nbatches: {batches}\nrows: {rows}"
        )
        assert setup.refused >= setup.faults[Fault.PUBLISHED], (
            "a batch published before a kill must be refused when it is repeated"
        )
