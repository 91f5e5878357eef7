"""Cursors over a whole topic, on the log store; `tests/integration/test_sql_store_rows.py` tests databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import small_settings

from sparrow.model.errors import GroupRequired, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.topic_cursor import open_at_end, open_for_group, read_span


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LogStore]:
    store = LogStore(tmp_path, small_settings())
    for name, parts in (("lanes", 1), ("parts", 2)):
        await store.catalog.put_topic(
            Topic(name=name, write_queues=parts, read_queues=parts * LANE_COUNT, sys_flag=LANES_SYS_FLAG)
        )
    await store.catalog.put_topic(Topic(name="plain", write_queues=2, read_queues=2))
    yield store
    await store.close()


async def put(store: LogStore, topic: str, queue_id: int, *texts: str) -> None:
    await store.append(Queue(topic, queue_id), [make_draft(text) for text in texts])


def texts(found: list[StoredMessage]) -> str:
    return " ".join(message.body.decode() for message in found)


async def test_high_is_read_before_middle_and_middle_before_low(store):
    await put(store, "lanes", 2, "l1", "l2", "l3")
    await put(store, "lanes", 0, "h1", "h2")
    await put(store, "lanes", 1, "m1")
    reader = await open_for_group(store, "lanes", "g")
    assert texts(await reader.read(4)) == "h1 h2 m1 l1"
    await put(store, "lanes", 0, "h3")
    assert texts(await reader.read(4)) == "h3 l2 l3"
    assert await reader.read(4) == []


async def test_write_queues_of_one_priority_take_turns_at_being_first(store):
    for queue_id in (0, 3):
        await put(store, "parts", queue_id, *(f"{queue_id}.{number}" for number in range(4)))
    reader = await open_for_group(store, "parts", "g")
    assert texts(await reader.read(2)) == "0.0 0.1"
    assert texts(await reader.read(2)) == "3.0 3.1"
    assert texts(await reader.read(6)) == "0.2 0.3 3.2 3.3"


async def test_a_topic_without_lanes_is_read_queue_by_queue(store):
    await put(store, "plain", 0, "a")
    await put(store, "plain", 1, "b")
    assert texts(await (await open_for_group(store, "plain", "g")).read(10)) == "a b"


async def test_a_group_continues_at_its_committed_offset(store):
    await put(store, "lanes", 0, "h1", "h2", "h3")
    await put(store, "lanes", 2, "l1", "l2")
    reader = await open_for_group(store, "lanes", "g")
    await reader.read(2)
    await reader.commit()
    await reader.read(10)
    assert texts(await (await open_for_group(store, "lanes", "g")).read(10)) == "h3 l1 l2"
    assert texts(await (await open_for_group(store, "lanes", "other")).read(10)) == "h1 h2 h3 l1 l2"


async def test_a_commit_covers_only_the_queues_that_were_read(store):
    await put(store, "lanes", 0, "h1")
    await put(store, "lanes", 2, "l1")
    reader = await open_for_group(store, "lanes", "g")
    await reader.read(1)
    await reader.commit()
    assert await store.offsets.all() == {("lanes", "g"): {0: 1}}


async def test_a_cursor_without_a_group_starts_at_the_end_and_cannot_commit(store):
    await put(store, "lanes", 1, "old")
    reader = await open_at_end(store, "lanes")
    await put(store, "lanes", 1, "new")
    assert texts(await reader.read(10)) == "new"
    with pytest.raises(GroupRequired, match="consumer group"):
        await reader.commit()
    with pytest.raises(GroupRequired, match="a resend"):
        reader.group_for("a resend")
    assert await store.offsets.all() == {}


async def test_an_unknown_topic_has_no_cursor(store):
    with pytest.raises(UnknownTopic):
        await open_at_end(store, "nowhere")
    with pytest.raises(UnknownTopic):
        await open_for_group(store, "nowhere", "g")


async def test_a_committed_offset_out_of_bounds_moves_to_the_nearer_end(store):
    await put(store, "lanes", 0, "h1")
    await store.offsets.commit("g", Queue("lanes", 0), 7)
    reader = await open_for_group(store, "lanes", "g")
    assert await reader.read(10) == []
    await put(store, "lanes", 0, "h2")
    assert texts(await reader.read(10)) == "h2"


async def test_a_span_returns_existing_messages_and_counts_missing_ones(store):
    queue = Queue("lanes", 0)
    for start in (0, 25):
        await put(store, "lanes", 0, *(f"{number}" for number in range(start, start + 25)))
    found = await read_span(store, queue, 10, 45)
    assert (texts(found.messages), found.missing) == (" ".join(map(str, range(10, 45))), 0)
    late = await read_span(store, queue, 48, 60)
    assert (texts(late.messages), late.missing) == ("48 49", 10)
    assert await read_span(store, queue, 5, 5) == ([], 0)
