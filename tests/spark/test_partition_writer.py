"""Tasks and commits of the sink on real brokers, without Spark: rows are published once under all failures."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.platforms import SMALL_LOG, broker_settings

from sparrow.broker import dispatch
from sparrow.broker.server import BrokerServer
from sparrow.cli.server.platform import Platform
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.consume.table_reader import read_table
from sparrow.client.aio.produce import staging
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.model.errors import Refused, Unavailable, UnknownTopic
from sparrow.model.priority import Priority, priority_of_queue
from sparrow.settings import NameServerSettings
from sparrow.spark.client_pool import PooledClient
from sparrow.spark.options import ClientOptions
from sparrow.spark.sink import driver_commit, partition_writer
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.spark.sink.commit_messages import TaskCommit, WriteId
from sparrow.spark.sink.message_columns import STRING_MAP_TYPE, resolve_columns
from sparrow.spark.sink.options import SinkOptions, parse_sink_options
from sparrow.testing import run_platform
from sparrow.wire.codes import RequestCode
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE

FIELDS = [("body", "binary"), ("keys", "string")]


class Shards:
    """A name server and two brokers, `a` and `b`; broker `b` can stop and restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = LoopThread("shards")
        self._platform = Platform(
            folder / "a", name_server=NameServerSettings(port=0), broker=broker_settings(name="a"), log=SMALL_LOG
        )
        self._loop.run(self._platform.start())
        self.name_servers = self._platform.name_servers
        self._port = 0
        self.come_back()

    def come_back(self) -> None:
        settings = broker_settings(name="b", name_servers=self.name_servers, port=self._port)
        self._second = BrokerServer(settings, self._folder / "b", SMALL_LOG)
        self._loop.run(self._second.start())
        self._port = self._second.address.port
        self.is_away = False

    def go(self) -> None:
        if not self.is_away:
            self.is_away = True
            self._loop.run(self._second.stop())

    def close(self) -> None:
        self.go()
        self._loop.run(self._platform.stop())
        self._loop.stop()


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    running = Shards(tmp_path)
    yield running
    running.close()


class Job:
    """Writes as Spark does: tasks, then a commit."""

    def __init__(self, name_servers: str, fields: Sequence[tuple[str, str]] = FIELDS, **given: str) -> None:
        self.options: SinkOptions = parse_sink_options({"nameServers": name_servers, "topic": "t", **given})
        self.client = PooledClient(ClientOptions(name_servers, timeout_ms=5000))
        self.layout = resolve_columns(fields, self.options)

    @property
    def brokers(self) -> SinkBrokers:
        return SinkBrokers(self.client.session, retry_timeout_ms=self.options.commit_timeout_ms, topic_queues=4)

    def create(self, topic: str = "t", *, brokers: list[str] | None = None) -> None:
        self.client.run(Admin(session=self.client.session).create_topic(topic, 4, brokers=brokers))

    def task(self, bodies: list[bytes], partition: int = 0, batch: int = 0, *, batch_rows_max: int = 100) -> TaskCommit:
        keys = [str(hash(body) % 97) for body in bodies]
        table = pa.table({"body": pa.array(bodies, pa.binary()), "keys": keys})
        return self.write(table.to_batches(batch_rows_max), partition, batch)

    def write(self, batches: Iterable[pa.RecordBatch], partition: int = 0, batch: int = 0) -> TaskCommit:
        task = partition_writer.WriteTask(WriteId("query/sink", batch), partition, can_create_topics=batch == 0)
        return partition_writer.write_partition(batches, self.layout, self.options, task, self.client)

    def commit(self, *receipts: TaskCommit) -> bool:
        return self.client.run(driver_commit.publish_stages(self.client.session, self.brokers, receipts))

    def stored(self, topic: str = "t") -> list[bytes]:
        return self.table(topic, "body").column("body").to_pylist()

    def table(self, topic: str, *columns: str) -> pa.Table:
        reading = read_table(self.client.session, "readers", topic, "first", "last", expression="*", columns=columns)
        return self.client.run(reading)


@pytest.fixture
def job(shards: Shards) -> Iterator[Job]:
    made = Job(shards.name_servers, commitTimeoutMs="10s")
    made.create()
    yield made
    made.client.close()


BODIES = [b"row %d" % i for i in range(1000)]


def test_rows_of_several_brokers_are_published_together(job: Job):
    receipts = [job.task(BODIES[:500]), job.task(BODIES[500:], 1)]
    assert {staged.broker for receipt in receipts for staged in receipt.stages} == {"a", "b"}
    assert sum(staged.rows for receipt in receipts for staged in receipt.stages) == 1000
    assert job.stored() == [], "staged records must not be visible"
    assert job.commit(*reversed(receipts))
    assert sorted(job.stored()) == sorted(BODIES)


def test_a_repeated_batch_is_dropped(job: Job):
    assert job.commit(job.task(BODIES, batch=3))
    assert not job.commit(job.task(BODIES, batch=3))
    assert not job.commit(job.task(BODIES, batch=2))
    assert job.commit(job.task([b"next"], batch=4))
    assert sorted(job.stored()) == sorted([*BODIES, b"next"])


def test_rows_of_one_key_keep_their_order(job: Job):
    job.commit(job.task(BODIES[:500]), job.task(BODIES[500:], 1))
    by_key: dict[int, list[bytes]] = {}
    for body in job.stored():
        by_key.setdefault(hash(body) % 97, []).append(body)
    for found in by_key.values():
        assert found == sorted(found, key=lambda body: int(body.split()[1]))


def test_a_batch_that_one_broker_missed_is_completed_by_its_repeat(job: Job, shards: Shards):
    impatient = Job(shards.name_servers, commitTimeoutMs="200ms")
    receipt = impatient.task(BODIES)
    impatient.client.run(_begun(impatient, receipt))
    shards.go()
    with pytest.raises(Unavailable):
        impatient.commit(receipt)
    impatient.client.close()
    shards.come_back()
    # As if the driver had died between the two commits.
    receipt = job.task(BODIES)
    first = next(staged for staged in receipt.stages if staged.broker == "a")
    job.client.run(_committed(job, first.stage))
    assert 0 < len(job.stored()) < 1000
    assert job.commit(job.task(BODIES))
    assert sorted(job.stored()) == sorted(BODIES)


async def _begun(job: Job, receipt: TaskCommit) -> None:
    """Record the set of brokers of the batch, as the first step of a commit does."""
    mark = driver_commit.broker_set_hash(broker for broker, _ in receipt.routes)
    for broker, topic in receipt.routes:
        await job.brokers.call(
            broker, topic, lambda at: staging.commit_stages(job.client.session, at, "query/sink#begun", mark, [])
        )


async def _committed(job: Job, stage: str) -> None:
    await job.brokers.call("a", "t", lambda at: staging.commit_stages(job.client.session, at, "query/sink", 0, [stage]))


def test_a_partly_published_batch_is_refused_on_other_brokers(job: Job):
    receipt = job.task(BODIES)
    job.client.run(_begun(job, receipt))
    job.client.run(_committed(job, next(each.stage for each in receipt.stages if each.broker == "a")))
    alone = TaskCommit(receipt.write_id, 0, receipt.rows, receipt.stages[:1], (("a", "t"),))
    with pytest.raises(Refused, match="begun on other brokers"):
        job.commit(alone)


def test_a_completed_batch_is_dropped_on_other_brokers_too(job: Job):
    assert job.commit(job.task(BODIES))
    again = job.task(BODIES)
    fewer = TaskCommit(again.write_id, 0, again.rows, again.stages[:1], (("a", "t"),))
    assert not job.commit(fewer)
    assert sorted(job.stored()) == sorted(BODIES)


def test_a_batch_repeated_after_a_topic_got_another_broker_is_not_written_twice(shards: Shards):
    job = Job(shards.name_servers)
    job.create(brokers=["a"])
    assert job.commit(job.task(BODIES))
    job.create()
    job.client.run(job.client.session.refresh(["t"]))
    again = job.task(BODIES)
    assert len(again.routes) == 2
    assert not job.commit(again)
    assert sorted(job.stored()) == sorted(BODIES)
    job.client.close()


def test_a_commit_waits_for_a_broker_that_restarts(job: Job, shards: Shards):
    receipt = job.task(BODIES)
    shards.go()
    returning = threading.Timer(0.5, shards.come_back)
    returning.start()
    assert job.commit(receipt)
    returning.join()
    assert sorted(job.stored()) == sorted(BODIES)


def test_a_failed_task_leaves_no_stage_behind(job: Job, tmp_path: Path):
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": pa.array([b"x" * 300_000] * 40, pa.binary()), "keys": ["k"] * 40})
        yield pa.record_batch({"body": pa.array([None], pa.binary()), "keys": ["k"]})

    with pytest.raises(Refused, match="row 40 of its partition has a null body"):
        job.write(batches())
    assert not [*tmp_path.rglob("*.part"), *tmp_path.rglob("*.stage")]


def test_staged_rows_can_be_discarded(job: Job, tmp_path: Path):
    receipt = job.task(BODIES)
    assert [*tmp_path.rglob("*.stage")]
    job.client.run(driver_commit.discard_stages(job.client.session, job.brokers, receipt.stages))
    assert not [*tmp_path.rglob("*.stage")]


def test_repeated_chunks_are_dropped_whatever_the_batch_sizes(shards: Shards):
    job = Job(shards.name_servers, delivery="idempotent", chunkRows="70")
    job.create()
    job.task(BODIES[:350], batch=1, batch_rows_max=100)  # an attempt that ends after some chunks
    job.task(BODIES, batch=1, batch_rows_max=33)
    job.task(BODIES, batch=1, batch_rows_max=1000)
    assert sorted(job.stored()) == sorted(BODIES)
    job.task([b"other partition"], 1, batch=1)
    job.task([b"next"], batch=2)
    assert sorted(job.stored()) == sorted([*BODIES, b"other partition", b"next"])
    job.client.close()


def test_at_least_once_rows_are_sent_without_a_stage(shards: Shards):
    job = Job(shards.name_servers, delivery="atLeastOnce")
    job.create()
    assert job.task(BODIES).stages == ()
    assert sorted(job.stored()) == sorted(BODIES)
    job.client.close()


def test_a_write_succeeds_with_a_tiny_limit_of_bytes_in_flight(shards: Shards):
    job = Job(shards.name_servers, maxInFlightBytes="1")
    job.create()
    large = [b"%06d" % i * 50_000 for i in range(30)]
    assert job.commit(job.task(large, batch_rows_max=7))
    assert sorted(job.stored()) == sorted(large)
    job.client.close()


@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent", "atLeastOnce"])
def test_a_topic_is_created_by_its_first_rows(shards: Shards, delivery: str):
    job = Job(shards.name_servers, delivery=delivery)
    receipt = job.task(BODIES)
    if receipt.stages:
        job.commit(receipt)
    assert sorted(job.stored()) == sorted(BODIES)
    job.client.close()


@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent", "atLeastOnce"])
def test_rows_go_to_the_lane_of_their_priority(shards: Shards, delivery: str):
    job = Job(shards.name_servers, [("body", "string"), ("properties", STRING_MAP_TYPE)], delivery=delivery)
    job.client.run(Admin(session=job.client.session).create_topic("t", 2, has_lanes=True))
    words = ["high", "middle", "low", None] * 5
    maps = [[("PRIORITY", word)] if word else [] for word in words]
    batch = pa.record_batch(
        {"body": [word or "none" for word in words], "properties": pa.array(maps, PROPERTY_MAP_TYPE)}
    )
    receipt = job.write([batch])
    if receipt.stages:
        assert job.commit(receipt)
    lanes = {Priority.HIGH: {"high"}, Priority.MIDDLE: {"middle", "none"}, Priority.LOW: {"low"}}
    found = job.table("t", "body", "queue_id").to_pylist()
    assert len(found) == 20
    assert all(row["body"].decode() in lanes[priority_of_queue(row["queue_id"])] for row in found)
    job.client.close()


def test_a_broker_without_staging_is_refused_before_the_first_write(shards: Shards, monkeypatch: pytest.MonkeyPatch):
    job = Job(shards.name_servers)
    job.create()
    for code in (RequestCode.QUERY_LEDGER, RequestCode.STAGE_RECORDS, RequestCode.APPEND_ONCE):  # like Apache's brokers
        monkeypatch.delitem(dispatch.HANDLERS, code)
    with pytest.raises(Refused, match=r"broker 'a' .* Set delivery=atLeastOnce"):
        job.client.run(job.brokers.check_staging("t"))
    with pytest.raises(Refused, match="Set delivery=atLeastOnce"):
        job.task(BODIES)
    job.client.close()


def test_a_missing_topic_without_auto_creation_is_an_error_before_the_first_write(tmp_path: Path):
    with run_platform(tmp_path, broker={"auto_create_topics": False}) as platform:
        job = Job(platform.name_servers)
        with pytest.raises(UnknownTopic):
            job.client.run(job.brokers.ensure_route("t"))
        job.client.close()


@pytest.mark.thorough
@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent"])
def test_rows_are_written_once_to_a_sql_store_too(tmp_path: Path, delivery: str):
    with run_platform(tmp_path, store=f"sqlite:///{tmp_path / 'messages.db'}") as platform:
        job = Job(platform.name_servers, delivery=delivery)
        for _ in range(2):
            receipt = job.task(BODIES, batch=0)  # the first batch creates its topic
            if receipt.stages:
                job.commit(receipt)
        assert sorted(job.stored()) == sorted(BODIES)
        job.client.close()
