"""Group progress: the part of the log that a group has read, which retention may delete."""

from pathlib import Path

import pytest
from tests.support.log_stores import SMALL_SETTINGS

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore

A, B, OTHER = Queue("orders", 0), Queue("orders", 1), Queue("other", 0)


@pytest.fixture
async def store(tmp_path: Path):
    async with LogStore(tmp_path, SMALL_SETTINGS) as opened:
        for name in ("orders", "other"):
            await opened.catalog.put_topic(Topic(name=name))
        yield opened


async def place(store: LogStore, queue: Queue, offset: int) -> int:
    found = await store.read(queue, offset, count_max=1, bytes_max=1 << 20)
    (raw,) = found.records()
    return int.from_bytes(raw[28:36], "big")


async def test_a_group_without_commits_has_no_progress(store: LogStore) -> None:
    await store.append(A, [Draft(body=b"1")])
    assert store.consumed_to("archive") is None


async def test_progress_is_the_oldest_unread_message_of_all_queues(store: LogStore) -> None:
    for queue in (A, B, OTHER, A, B):
        await store.append(queue, [Draft(body=b"x")])
    await store.offsets.commit("archive", A, 1)
    assert store.consumed_to("archive") == await place(store, B, 0), (
        "the group has not read the other queue of the topic"
    )
    await store.offsets.commit("archive", B, 1)
    assert store.consumed_to("archive") == await place(store, A, 1)
    await store.offsets.commit("archive", A, 2)
    assert store.consumed_to("archive") == await place(store, B, 1)


async def test_topics_that_the_group_does_not_read_do_not_limit_its_progress(store: LogStore) -> None:
    await store.append(A, [Draft(body=b"1")])
    await store.offsets.commit("archive", A, 1)
    await store.append(OTHER, [Draft(body=b"x")])
    assert store.consumed_to("archive") == store.written


async def test_a_message_that_is_not_visible_yet_limits_the_progress(tmp_path: Path) -> None:
    settings = SMALL_SETTINGS.model_copy(update={"visible_after": "replicated"})
    async with LogStore(tmp_path, settings) as store:
        await store.catalog.put_topic(Topic(name="orders"))
        await store.append(A, [Draft(body=b"1")])
        start = store.consumed_to("archive")
        assert start is None
        store.replica.commit_to(store.written)
        await store.offsets.commit("archive", A, 1)
        end = store.written
        await store.append(A, [Draft(body=b"2")])
        assert store.consumed_to("archive") == end
