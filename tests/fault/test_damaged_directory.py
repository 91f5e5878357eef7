"""A store folder with missing, truncated, overwritten or foreign files: the store serves the intact records and logs
the damage.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fault.store_contents import (
    SMALL_SETTINGS,
    Place,
    assert_records_match_places,
    assert_same_records,
    folder_in_memory,
    open_store,
    read_served,
)
from tests.support.log_stores import checkpoint

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.wire import record

QUEUES = [Queue(topic, n) for topic in ("orders", "bills") for n in range(2)]
SEGMENT = SMALL_SETTINGS.segment_bytes
MESSAGES = 600


class Left(NamedTuple):
    """A store that was closed in order, and its served records."""

    path: Path
    contents: dict[Place, bytes]

    def segments(self) -> list[Path]:
        return sorted((self.path / "commitlog").iterdir())

    def queue_files(self, queue: Queue) -> list[Path]:
        return sorted((self.path / "consumequeue" / queue.topic / str(queue.id)).iterdir())

    def index_files(self) -> list[Path]:
        return sorted((self.path / "index").iterdir())

    def outside(self, start: int, end: int) -> dict[Place, bytes]:
        """Return the records outside a range of the log."""
        return {place: data for place, data in self.contents.items() if not start <= physical_offset_of(data) < end}


def physical_offset_of(data: bytes) -> int:
    return record.decode(data).physical_offset


async def fill(store: LogStore) -> dict[Place, bytes]:
    for topic in ("orders", "bills"):
        await store.catalog.put_topic(Topic(name=topic))
    for number in range(MESSAGES):
        properties = f"KEYS\x01k{number}\x02".encode()
        await store.append(QUEUES[number % 4], [Draft(body=f"message {number}".encode(), properties=properties)])
        if number == MESSAGES // 2:
            await store.offsets.commit("group", QUEUES[0], number)
    return await read_served(store, QUEUES)


@pytest.fixture(scope="module")
def made() -> Iterator[Left]:
    with folder_in_memory() as folder:
        store = open_store(folder / "store")
        contents = asyncio.run(fill(store))
        store.close_blocking()
        assert len(list((folder / "store" / "commitlog").iterdir())) >= 4
        yield Left(folder / "store", contents)


@pytest.fixture
def left(made: Left, tmp_path: Path) -> Left:
    shutil.copytree(made.path, tmp_path / "store")
    return Left(tmp_path / "store", made.contents)


async def look(left: Left, expected: dict[Place, bytes]) -> LogStore:
    """Open the store; assert that it serves the expected records, accepts appends, and keeps both at the next start."""
    store = open_store(left.path)
    found = await read_served(store, QUEUES)
    assert_same_records(found, expected)
    assert_records_match_places(found)
    topics = await store.catalog.list_topics()
    for queue in QUEUES:
        if queue.topic not in topics:
            await store.catalog.put_topic(Topic(name=queue.topic))
        appended = await store.append(queue, [Draft(body=b"new", properties=b"KEYS\x01new\x02")])
        seen = [place.offset for place in found if place.queue == queue]
        assert appended.offset > max(seen, default=-1), "an offset that was served is assigned again"
    now = await read_served(store, QUEUES)
    store.close_blocking()
    again = open_store(left.path)
    try:
        assert_same_records(await read_served(again, QUEUES), now)
    finally:
        again.close_blocking()
    return store


async def found_by_key(store: LogStore, contents: dict[Place, bytes]) -> int:
    """Return the number of messages found by key; assert that each found message is right."""
    count = 0
    for place, data in contents.items():
        key = record.decode(data).properties["KEYS"]
        found = await store.find_by_key(place.queue.topic, key)
        assert found in ([], [data])
        count += len(found)
    return count


def garbage(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


# -- the commit log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", ["with views", "without views"])
async def test_a_missing_segment_loses_only_its_own_messages(
    left: Left, views: str, caplog: pytest.LogCaptureFixture
) -> None:
    left.segments()[1].unlink()
    if views == "without views":
        (left.path / "sparrow.checkpoint").unlink()
    with caplog.at_level(logging.WARNING):
        store = await look(left, left.outside(SEGMENT, 2 * SEGMENT))
    assert any("missing" in line.getMessage() for line in caplog.records)
    assert any(damage.start <= SEGMENT and damage.end >= 2 * SEGMENT for damage in store.damage)


@pytest.mark.parametrize("at", [1, -1])
async def test_an_emptied_segment_loses_only_its_own_messages(
    left: Left, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    segment = left.segments()[at]
    os.truncate(segment, 0)
    base = int(segment.name)
    with caplog.at_level(logging.WARNING):
        await look(left, left.outside(base, base + SEGMENT))
    assert any(f"segment {segment} has 0 bytes" in text for text in caplog.messages)


async def test_a_missing_oldest_segment_is_like_retention(left: Left) -> None:
    left.segments()[0].unlink()
    store = open_store(left.path)
    try:
        found = await read_served(store, QUEUES)
        assert_same_records(found, left.outside(0, SEGMENT))
        assert (await store.bounds(QUEUES[0])).first == min(place.offset for place in found if place.queue == QUEUES[0])
    finally:
        store.close_blocking()


async def test_missing_newest_segments_truncate_the_log(left: Left) -> None:
    for segment in left.segments()[2:]:
        segment.unlink()
    await look(left, left.outside(2 * SEGMENT, 1 << 62))


@pytest.mark.parametrize("views", ["with views", "without views"])
async def test_garbage_inside_a_segment_loses_only_the_overwritten_records(left: Left, views: str) -> None:
    start, end = SEGMENT + 3000, SEGMENT + 5000
    with open(left.segments()[1], "r+b") as file:
        file.seek(start - SEGMENT)
        file.write(garbage(end - start))
    if views == "without views":
        (left.path / "sparrow.checkpoint").unlink()
    hit = {
        place
        for place, data in left.contents.items()
        if physical_offset_of(data) < end and physical_offset_of(data) + len(data) > start
    }
    store = await look(left, {place: data for place, data in left.contents.items() if place not in hit})
    if views == "without views":
        assert any(start - 200 < damage.start <= start and end <= damage.end < end + 200 for damage in store.damage)


@pytest.mark.parametrize("views", ["with views", "without views"])
async def test_a_page_of_zeros_in_the_last_segment_loses_only_the_overwritten_records(left: Left, views: str) -> None:
    """After a power loss, one page may be missing on the disk although later ones were written."""
    base = int(left.segments()[-1].name)
    start, end = 1024, 2048
    with open(left.segments()[-1], "r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))
    if views == "without views":
        (left.path / "sparrow.checkpoint").unlink()
    hit = {
        place
        for place, data in left.contents.items()
        if physical_offset_of(data) < base + end and physical_offset_of(data) + len(data) > base + start
    }
    assert hit
    await look(left, {place: data for place, data in left.contents.items() if place not in hit})


async def test_a_damaged_newest_record_is_not_served_when_newer_records_follow_the_checkpoint(tmp_path: Path) -> None:
    """The consume queues point to a record that is damaged, and the log continues after it."""
    store = open_store(tmp_path / "living")
    await store.catalog.put_topic(Topic(name="orders"))
    queue = Queue("orders", 0)
    for number in range(10):
        await store.append(queue, [Draft(body=b"before %d" % number)])
    checkpoint(store)
    victim = (await read_served(store, [queue]))[Place(queue, 9)]
    for number in range(10):
        await store.append(queue, [Draft(body=b"behind %d" % number)])
    expected = await read_served(store, [queue])
    shutil.copytree(tmp_path / "living", tmp_path / "left")
    store.close_blocking()
    with open(tmp_path / "left" / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(physical_offset_of(victim) + record.FIXED_HEADER_BYTES)
        file.write(b"BROKEN")
    del expected[Place(queue, 9)]
    store = open_store(tmp_path / "left")
    try:
        assert_same_records(await read_served(store, [queue]), expected)
    finally:
        store.close_blocking()


# -- the consume queues -----------------------------------------------------------------------------------------------


def overwritten(path: Path) -> None:
    path.write_bytes(garbage(path.stat().st_size))


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def removed(path: Path) -> None:
    path.unlink()


DAMAGES = [overwritten, halved, emptied, zeroed, removed]


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_queue_file_breaks_nothing(left: Left, damage: Callable[[Path], None], which: int) -> None:
    """Consume queues are a view. The store checks the newest files when it opens, and rebuilds all of them if one is
    wrong. Damage in an older file shows at the read: messages may then be missing until the queues are rebuilt.
    """
    damage(left.queue_files(QUEUES[0])[which])
    store = open_store(left.path)
    try:
        found = await read_served(store, QUEUES)
        assert_records_match_places(found)
        missing = left.contents.keys() - found.keys()
        assert all(left.contents[place] == data for place, data in found.items())
        assert not any(place.queue != QUEUES[0] for place in missing), "another queue is damaged"
        if which == -1:
            assert not missing
    finally:
        store.close_blocking()
    (left.path / "sparrow.checkpoint").unlink()
    await look(left, left.contents)


async def test_lost_queues_are_rebuilt(left: Left) -> None:
    shutil.rmtree(left.path / "consumequeue")
    await look(left, left.contents)


async def test_a_lost_queue_is_rebuilt(left: Left) -> None:
    shutil.rmtree(left.path / "consumequeue" / "orders" / "1")
    await look(left, left.contents)


# -- the key index ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_index_returns_no_wrong_message(left: Left, damage: Callable[[Path], None]) -> None:
    damage(left.index_files()[-1])
    store = open_store(left.path)
    try:
        found = await found_by_key(store, left.contents)
        if damage in (halved, emptied, removed, zeroed):
            assert found == len(left.contents), "an incomplete index must be rebuilt"
        await store.append(QUEUES[0], [Draft(body=b"new", properties=b"KEYS\x01new\x02")])
        assert len(await store.find_by_key("orders", "new")) == 1, "new messages must be found"
    finally:
        store.close_blocking()
    await look(left, await contents_now(left))


async def contents_now(left: Left) -> dict[Place, bytes]:
    with open_store(left.path) as store:
        return await read_served(store, QUEUES)


async def test_a_lost_index_is_rebuilt(left: Left) -> None:
    shutil.rmtree(left.path / "index")
    with open_store(left.path) as store:
        assert await found_by_key(store, left.contents) == len(left.contents)
    await look(left, left.contents)


# -- the small files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["sparrow.checkpoint", "sparrow.state", "sparrow.layout", "checkpoint", "lock"])
async def test_a_damaged_small_file_loses_no_message(
    left: Left, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(left.path / name)
    with caplog.at_level(logging.WARNING):
        store = open_store(left.path)
    try:
        assert {"orders", "bills"} <= (await store.catalog.list_topics()).keys()
        assert await store.offsets.committed("group", QUEUES[0]) == MESSAGES // 2
    finally:
        store.close_blocking()
    if name.startswith("sparrow") and damage is not removed:
        assert any(f"{name} is damaged and is ignored" in text for text in caplog.messages)
    await look(left, left.contents)


async def test_a_checkpoint_beyond_the_end_of_the_log_is_ignored(left: Left) -> None:
    """The log is older than its views, e.g. after a partial restore of a backup."""
    kept = (left.path / "sparrow.checkpoint").read_bytes()
    for segment in left.segments()[3:]:
        segment.unlink()
    open_store(left.path).close_blocking()
    (left.path / "sparrow.checkpoint").write_bytes(kept)
    await look(left, left.outside(3 * SEGMENT, 1 << 62))


# -- foreign files ----------------------------------------------------------------------------------------------------


async def test_foreign_files_are_left_alone(left: Left) -> None:
    strangers = [
        "commitlog/.DS_Store",
        "commitlog/00000000000000000000.bak",
        "commitlog/notes",
        "consumequeue/README",
        "consumequeue/orders/notes",
        "consumequeue/orders/0/00000000000000000000.swp",
        "consumequeue/.hidden/0/x",
        "index/20240101000000000.tmp",
        "index/README",
        "sparrow.checkpoint.new",
        "lost+found/x",
    ]
    for name in strangers:
        (left.path / name).parent.mkdir(parents=True, exist_ok=True)
        (left.path / name).write_bytes(garbage(100))
    await look(left, left.contents)
    for name in strangers:
        if name != "sparrow.checkpoint.new":
            assert (left.path / name).read_bytes() == garbage(100), f"the store must not change {name}"


async def test_a_foreign_queue_holds_no_messages(left: Left) -> None:
    """Entries of a queue that the log does not contain point to no message of that queue."""
    stranger = Queue("strange", 7)
    folder = left.path / "consumequeue" / "strange" / "7"
    folder.mkdir(parents=True)
    shutil.copy(left.queue_files(QUEUES[0])[0], folder)
    with open_store(left.path) as store:
        assert await read_served(store, [stranger]) == {}
    await look(left, left.contents)
