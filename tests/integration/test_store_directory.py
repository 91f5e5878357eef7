"""Read-only access to a store directory equals the store: open, closed or killed, of Sparrow or of RocketMQ."""

import json
import random
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import checkpoint, copy_as_crashed, overwrite, small_settings

from sparrow.model import Draft, Queue
from sparrow.model.errors import DataLost
from sparrow.model.topic import Topic
from sparrow.settings import LogSettings
from sparrow.spark.runtime.tar_archive import extract
from sparrow.store.log import LogStore
from sparrow.store.log.readonly.store_directory import SegmentRecords, StoreDirectory
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.store.spi import Moved, Slice
from sparrow.wire import columns, record
from sparrow.wire.hashes import tags_code
from sparrow.wire.queue_batches import QueueBatch

FIXTURE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
HOUR_MS = 3_600_000


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[LogStore]:
    async with LogStore(tmp_path / "store", small_settings(), now_ms=clock) as opened:
        for name in ("orders", "events", "%RETRY%group"):
            await opened.catalog.put_topic(Topic(name=name))
        yield opened


def fill(store: LogStore, clock: Clock, count: int, *, seed: int = 1) -> None:
    """Append varied messages to several queues, with occasional checkpoints."""
    rng = random.Random(seed)
    for number in range(count):
        queue = Queue(rng.choice(["orders", "events", "%RETRY%group"]), rng.randrange(3))
        sizes = [rng.randrange(200) for _ in range(rng.choice([1, 1, 1, 3]))]
        drafts = [make_draft(rng.randbytes(size), tags=rng.choice(["", "red", "blue", "größe"])) for size in sizes]
        if rng.random() < 0.1:
            drafts.append(make_draft("half", sys_flag=4))
        store.append_nowait(queue, drafts)
        clock.ms += rng.randrange(3)
        if number % 97 == 50:
            checkpoint(store)


def records(parts: Iterator[SegmentRecords]) -> list[bytes]:
    return [
        bytes(part.view[start : start + size])
        for part in parts
        for start, size in zip(part.starts.tolist(), part.sizes.tolist(), strict=True)
    ]


def place_of(data: bytes) -> int:
    return record.decode(data).physical_offset


async def told(store: LogStore, queue: Queue, *, tags_codes: frozenset[int] | None = None) -> list[bytes]:
    """Return all records that the store reads from a queue."""
    found: list[bytes] = []
    at, end = await store.bounds(queue)
    while at < end:
        result = await store.read(queue, at, count_max=7, tags_codes=tags_codes)
        assert isinstance(result, Slice)
        found += [bytes(each) for each in result.records()]
        at = result.next_offset
    return found


async def assert_same(store: LogStore, path: Path) -> None:
    """Assert that the directory at `path` returns the same bytes as the store."""
    directory = StoreDirectory(path)
    queues = {each.queue for each in store._queues if each.end}
    assert {Queue(topic, id) for topic in directory.topics() for id in directory.bounds(topic)} == queues
    everything: list[bytes] = []
    codes = frozenset([tags_code("red"), tags_code("größe")])
    for queue in sorted(queues):
        bounds = directory.bounds(queue.topic)[queue.id]
        assert bounds == await store.bounds(queue)
        expected = await told(store, queue)
        assert records(StoreDirectory(path).read(queue, *bounds, rows_max=5)) == expected
        everything += expected
        assert records(directory.read(queue, *bounds, rows_max=5, tags_codes=codes)) == await told(
            store, queue, tags_codes=codes
        )
        times = {record.decode(each).store_ms for each in expected}
        for time_ms in {at + step for at in times for step in (-1, 0, 1)}:
            for upper in (False, True):
                answer = await store.offset_at(queue, time_ms, upper=upper)
                assert directory.offset_at(queue, time_ms, upper=upper) == answer
    assert sorted(everything, key=place_of) == records(directory.scan(*directory.physical_bounds(), rows_max=9))
    assert directory.physical_bounds() == (store.first, store.written)


@pytest.mark.parametrize("seed", range(4))
async def test_a_directory_of_an_open_store_reads_the_same(store: LogStore, clock: Clock, seed: int) -> None:
    fill(store, clock, 200, seed=seed)
    await assert_same(store, store.path)


async def test_a_directory_of_a_killed_store_reads_the_same(store: LogStore, clock: Clock, tmp_path: Path) -> None:
    for number in range(5):
        fill(store, clock, 37, seed=number)
        await assert_same(store, copy_as_crashed(store, tmp_path / f"killed-{number}"))


async def test_a_killed_store_without_consume_queue_files_is_readable(
    store: LogStore, clock: Clock, tmp_path: Path
) -> None:
    fill(store, clock, 80)
    copy = copy_as_crashed(store, tmp_path / "killed")
    shutil.rmtree(copy / "consumequeue")
    (copy / "sparrow.checkpoint").unlink()
    await assert_same(store, copy)


async def test_a_directory_of_a_closed_store_reads_the_same(store: LogStore, clock: Clock, tmp_path: Path) -> None:
    fill(store, clock, 120)
    store.close_blocking()
    closed = shutil.copytree(store.path, tmp_path / "closed")
    async with LogStore(closed, small_settings(), now_ms=clock) as again:
        await assert_same(again, store.path)


async def test_retention_moves_the_first_offset(store: LogStore, clock: Clock) -> None:
    fill(store, clock, 80)
    before = StoreDirectory(store.path)
    queue = next(Queue("orders", id) for id, bounds in before.bounds("orders").items() if bounds.end > 5)
    reading = before.read(queue, 0, 5, rows_max=1)
    clock.ms += 100 * HOUR_MS
    fill(store, clock, 20, seed=2)
    assert await store.trim() > 0
    with pytest.raises(DataLost) as caught:
        list(reading)
    assert caught.value.first == (await store.bounds(queue)).first
    assert isinstance(await store.read(queue, 0), Moved)
    await assert_same(store, store.path)
    with pytest.raises(DataLost):
        StoreDirectory(store.path).read(queue, 0, 5, rows_max=1)
    fill(store, clock, 20, seed=3)
    await assert_same(store, store.path)


async def test_a_queue_emptied_by_retention_keeps_its_end(store: LogStore, clock: Clock) -> None:
    fill(store, clock, 80)
    ends = {id: bounds.end for id, bounds in StoreDirectory(store.path).bounds("orders").items()}
    for _ in range(2):  # the segment of the last of them also holds younger messages
        clock.ms += 100 * HOUR_MS
        for _ in range(40):
            store.append_nowait(Queue("events", 0), [make_draft(bytes(200))])
    assert await store.trim() > 0
    assert StoreDirectory(store.path).bounds("orders") == {id: (end, end) for id, end in ends.items()}
    await assert_same(store, store.path)
    store.close_blocking()
    shutil.rmtree(store.path / "consumequeue")
    async with LogStore(store.path, small_settings(), now_ms=clock) as again:
        assert not (store.path / "consumequeue" / "orders").exists()
        await assert_same(again, store.path)


async def test_a_directory_with_a_running_writer_is_read_without_gaps(store: LogStore, clock: Clock) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(1500):
            store.append_nowait(Queue("orders", number % 3), [make_draft(f"{number}".ljust(150))])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = {0: 0, 1: 0, 2: 0}
    numbers: list[int] = []
    looks = 0
    while not done.is_set() or looks == 0 or len(numbers) < 1500:
        directory = StoreDirectory(store.path)
        for id, bounds in directory.bounds("orders").items():
            assert bounds.first == 0
            assert bounds.end >= seen[id]
            for data in records(directory.read(Queue("orders", id), seen[id], bounds.end, rows_max=50)):
                message = record.decode(data)
                assert message.queue_offset == seen[id]
                seen[id] += 1
                numbers.append(int(message.body))
        looks += 1
    writer.join()
    assert sorted(numbers) == list(range(1500))


@pytest.mark.parametrize("body_bytes", [20, 900])
async def test_an_atomic_append_is_visible_only_when_complete(store: LogStore, tmp_path: Path, body_bytes: int) -> None:
    """Truncate before each of its records in turn, in one segment and across several, after a complete append."""
    store.append_nowait(Queue("orders", 0), [make_draft("before")])
    bodies = [bytes([number]) * body_bytes for number in range(12)]
    encoded = columns.encode(pa.array(bodies, pa.binary()), topic="orders")
    batches = [QueueBatch(Queue("orders", id), memoryview(encoded.data), encoded.sizes) for id in (0, 1)]
    assert await store.append_atomically("job", 1, batches)
    begun_at = store.written
    assert await store.append_atomically("job", 2, batches)
    end = store.written
    store.append_nowait(Queue("orders", 0), [make_draft("after")])
    places = [place_of(data) for data in records(StoreDirectory(store.path).scan(begun_at, end, rows_max=100))]
    assert len(places) == 26
    for number, place in enumerate(places):
        copy = copy_as_crashed(store, tmp_path / f"{number}")
        for path in (copy / "commitlog").iterdir():
            if int(path.name) + 4096 > place:
                at = max(place - int(path.name), 0)
                overwrite(path, at, bytes(4096 - at))
        directory = StoreDirectory(copy)
        assert directory.bounds("orders") == {0: (0, 13), 1: (0, 12)}
        assert directory.physical_bounds()[1] == begun_at
        async with LogStore(copy, small_settings()) as recovered:
            assert await recovered.bounds(Queue("orders", 0)) == (0, 13)
    assert StoreDirectory(store.path).bounds("orders") == {0: (0, 26), 1: (0, 24)}
    await assert_same(store, store.path)


# -- directories of RocketMQ ------------------------------------------------------------------------------------------


@pytest.fixture(params=["clean", "crashed"])
def rocketmq(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    extract(FIXTURE / f"{request.param}.tar.xz", tmp_path / "rocketmq")
    return tmp_path / "rocketmq"


def test_a_directory_of_rocketmq_equals_what_the_official_client_read(rocketmq: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in rocketmq.rglob("*")}
    directory = StoreDirectory(rocketmq)
    for want in EXPECTED["queues"]:
        bounds = directory.bounds(want["topic"])[want["queueId"]]
        assert bounds == (want["minOffset"], want["maxOffset"])
        queue = Queue(want["topic"], want["queueId"])
        expected = [each for each in EXPECTED["messages"] if Queue(each["topic"], each["queueId"]) == queue]
        messages = [record.decode(data) for data in records(directory.read(queue, *bounds, rows_max=8))]
        assert [message.body.hex() for message in messages] == [each["body"] for each in expected]
        assert [message.physical_offset for message in messages] == [each["commitLogOffset"] for each in expected]
    for want in EXPECTED["searchByTime"]:
        assert directory.offset_at(Queue(want["topic"], want["queueId"]), want["timestamp"]) == want["lowerBound"]
    assert {path: path.stat().st_mtime_ns for path in rocketmq.rglob("*")} == files


async def test_a_directory_of_rocketmq_equals_the_store_that_opens_it(rocketmq: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(rocketmq, tmp_path / "copy")
    async with LogStore(copy, LogSettings(index_slots=100, index_entries=200)) as store:
        directory = StoreDirectory(rocketmq)
        assert set(directory.topics()) == {each.queue.topic for each in store._queues} - {STATE_QUEUE.topic}
        everything: list[bytes] = []
        for topic in directory.topics():
            for id, bounds in directory.bounds(topic).items():
                assert bounds == await store.bounds(Queue(topic, id))
                everything += records(directory.read(Queue(topic, id), *bounds, rows_max=8))
        assert sorted(everything, key=place_of) == records(directory.scan(*directory.physical_bounds(), rows_max=8))
        store.append_nowait(Queue("TopicTest", 0), [Draft(body=b"ours")])
        await assert_same(store, copy)


def test_consume_queue_files_of_rocketmq_may_lag_behind_its_commit_log(rocketmq: Path) -> None:
    """A broker that is killed between append and dispatch leaves such files."""
    directory = StoreDirectory(rocketmq)
    whole = {topic: directory.bounds(topic) for topic in directory.topics()}
    places = [
        (place, path, at)
        for path in (rocketmq / "consumequeue").glob("*/*/*")
        for at in range(0, path.stat().st_size, 20)
        if (place := int.from_bytes(path.read_bytes()[at : at + 8], "big")) or at == 0
    ]
    for _, path, at in sorted(places)[-10:]:
        data = bytearray(path.read_bytes())
        data[at : at + 20] = bytes(20)
        path.write_bytes(data)
    assert {topic: StoreDirectory(rocketmq).bounds(topic) for topic in whole} == whole
