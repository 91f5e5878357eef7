"""Retention of the SQL store: what it deletes, what it keeps, and that it does not block readers or appends."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.drafts import decode_messages, make_draft

from sparrow import clock
from sparrow.model.message import Draft
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority
from sparrow.model.protocol import PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.settings import SqlSettings
from sparrow.store.spi import Moved, Slice
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.maintenance.retention import DEDUP_WINDOW_MS, SILENT_GROUP_MS, TrimReport, trim
from sparrow.store.sql.schema.partitions import (
    add_partitions,
    drop_detached_partitions,
    drop_partitions,
    list_partitions,
)
from sparrow.wire import properties

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ROWS = 100
SETTINGS = SqlSettings(partition_rows=ROWS, retention_hours=1)
MIDDLE = Queue("orders", Priority.MIDDLE)
HIGH = Queue("orders", Priority.HIGH)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with await SqlStore.open(database_url, SETTINGS) as opened:
        await opened.catalog.put_topic(
            Topic(name="orders", write_queues=1, read_queues=LANE_COUNT, sys_flag=LANES_SYS_FLAG)
        )
        yield opened


async def fill(store: SqlStore, queue: Queue, count: int, *, keys: str = "") -> None:
    for start in range(0, count, 50):
        drafts = [make_draft(f"{start + at}", keys=keys.format(start + at)) for at in range(min(50, count - start))]
        await store.append(queue, drafts)


async def trimmed(store: SqlStore, settings: SqlSettings = SETTINGS, *, later_ms: int = 2 * HOUR_MS) -> TrimReport:
    """Trim at a later time."""
    await store.offsets.flush()
    return await trim(store.database, store.catalog, settings, clock.now_ms() + later_ms, grace_s=0)


def lane_of(store: SqlStore, queue: Queue) -> Lane:
    return store.catalog.lanes[queue]


async def count(store: SqlStore, table: str, where: str = "1 = 1") -> int:
    ((found,),) = await store.database.fetch(f'SELECT COUNT(*) FROM "{table}" WHERE {where}')
    return int(found)


@pytest.mark.one_database
async def test_messages_younger_than_the_retention_are_kept(store: SqlStore) -> None:
    await fill(store, MIDDLE, 250)
    assert (await trimmed(store, later_ms=0)).messages == 0
    assert await store.bounds(MIDDLE) == QueueBounds(0, 250)


async def test_old_messages_are_deleted_by_whole_partitions_and_the_rest_stays_readable(store: SqlStore) -> None:
    await fill(store, MIDDLE, 250)
    went = await trimmed(store)
    first = 250 if store.database.dialect == "sqlite" else 200  # the partition in use is kept
    assert went.messages == first
    assert went.partitions_dropped == (0 if store.database.dialect == "sqlite" else 2)
    assert await store.bounds(MIDDLE) == QueueBounds(first, 250)
    assert await count(store, lane_of(store, MIDDLE).table) == 250 - first
    assert await store.read(MIDDLE, 0) == Moved(first, QueueBounds(first, 250))
    appended = await store.append(MIDDLE, [make_draft("next")])
    assert appended.offset == 250
    found = await store.read(MIDDLE, first, count_max=100)
    assert isinstance(found, Slice)
    assert [message.queue_offset for message in decode_messages(found)] == list(range(first, 251))
    assert (await trimmed(store)).messages == (1 if store.database.dialect == "sqlite" else 0)


async def test_partitions_are_created_ahead_of_need(store: SqlStore) -> None:
    if store.database.dialect == "sqlite":
        pytest.skip("this database has no partitions")
    lane = lane_of(store, MIDDLE)
    for filled in (100, 250, 430):
        await fill(store, MIDDLE, filled - (await store.bounds(MIDDLE)).end)
        await trimmed(store, later_ms=0)
        ahead = [each for each in await list_partitions(store.database, lane.table) if each.end - ROWS > filled]
        assert len(ahead) >= 2
    assert (await trimmed(store, later_ms=0)).partitions_made == 0


async def test_a_new_partition_size_applies_from_the_next_partition(store: SqlStore) -> None:
    if store.database.dialect == "sqlite":
        pytest.skip("this database has no partitions")
    lane = lane_of(store, MIDDLE)
    await add_partitions(store.database, lane.table, 290, 1000)
    assert [each.end for each in await list_partitions(store.database, lane.table)] == [101, 201, 301, 1001, 2001, 3001]
    await fill(store, MIDDLE, 350)
    assert (await trimmed(store)).messages == 300
    assert await store.bounds(MIDDLE) == QueueBounds(300, 350)


async def test_concurrent_creation_of_partitions_works(store: SqlStore) -> None:
    if store.database.dialect == "sqlite":
        pytest.skip("this database has no partitions")
    lane = lane_of(store, MIDDLE)
    for next_id in range(290, 1500, ROWS):
        await asyncio.gather(*(add_partitions(store.database, lane.table, next_id, ROWS) for _ in range(4)))
    ends = [each.end for each in await list_partitions(store.database, lane.table)]
    assert ends == list(range(ROWS + 1, ends[-1] + 1, ROWS))
    assert ends[-1] > 1490 + ROWS
    await fill(store, MIDDLE, 1500)


@pytest.mark.one_database
async def test_unread_messages_of_a_group_are_kept(store: SqlStore) -> None:
    await fill(store, MIDDLE, 350)
    await store.offsets.commit("slow", MIDDLE, 150)
    await store.offsets.commit("quick", MIDDLE, 350)
    await store.offsets.commit("slow", HIGH, 0)
    await trimmed(store)
    first = 150 if store.database.dialect == "sqlite" else 100
    assert await store.bounds(MIDDLE) == QueueBounds(first, 350)
    await trimmed(store, SETTINGS.model_copy(update={"retains_unread": False}))
    assert (await store.bounds(MIDDLE)).first >= 300


@pytest.mark.one_database
async def test_unread_messages_of_a_group_inactive_for_30_days_are_deleted(store: SqlStore) -> None:
    await fill(store, MIDDLE, 150)
    await store.offsets.commit("gone", MIDDLE, 10)
    await trimmed(store, later_ms=SILENT_GROUP_MS - DAY_MS)
    assert (await store.bounds(MIDDLE)).first <= 10
    await trimmed(store, later_ms=SILENT_GROUP_MS + DAY_MS)
    assert (await store.bounds(MIDDLE)).first >= 100


@pytest.mark.one_database
async def test_messages_of_a_pending_resend_are_kept(store: SqlStore) -> None:
    await fill(store, MIDDLE, 350)
    lane = lane_of(store, MIDDLE)
    for group in ("g", "h"):
        await store.resend_ranges.register_group(group, lane)
    await store.resend_ranges.request(lane, "g", 130, 140)
    await trimmed(store)
    first = 129 if store.database.dialect == "sqlite" else 100
    assert await store.bounds(MIDDLE) == QueueBounds(first, 350)
    async with store.database.transaction() as session:
        assert await store.resend_ranges.mark_done(session, "g", lane, 1)
    await trimmed(store)
    assert (await store.bounds(MIDDLE)).first >= 300, "a resend range of g must not wait for h"


async def test_keys_of_deleted_messages_are_deleted_and_other_keys_are_kept(store: SqlStore) -> None:
    await fill(store, MIDDLE, 230, keys="first-{0} order-{0} popular")
    await fill(store, HIGH, 3, keys="first-{0} order-{0} popular")
    await store.offsets.commit("g", HIGH, 0)
    went = await trimmed(store)
    kept = 230 - went.messages
    assert went.keys == went.messages * 2
    assert await count(store, "key_orders", "priority = 'middle'") == kept * 2
    assert await count(store, "key_orders", "priority = 'high'") == 3 * 2
    assert len(await store.find_by_key("orders", "order-1")) == 1, "only the message of the high lane may remain"


async def test_a_key_that_every_message_has_is_deleted_in_batches(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow.store.sql.maintenance.retention.ROWS_PER_DELETE", 7)
    await fill(store, MIDDLE, 120, keys="first-{0} order-{0} popular")
    went = await trimmed(store)
    assert await count(store, "key_orders") == (120 - went.messages) * 2
    assert went.messages >= 100


@pytest.mark.one_database
async def test_batch_rows_are_kept_for_the_dedup_window(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrow.store.sql.maintenance.retention.ROWS_PER_DELETE", 3)
    for number in range(10):
        sequence = {PROPERTY_PRODUCER_ID: "producer", PROPERTY_SEQUENCE: str(number)}
        await store.append(MIDDLE, [Draft(body=b"x", properties=properties.encode(sequence), born_ms=1)])
    stored = await count(store, "hermes_batch")
    assert stored == (20 if store.database.may_lose_answers else 10), "with the writer's own, where it needs them"
    assert (await trimmed(store, later_ms=DEDUP_WINDOW_MS - HOUR_MS)).batches == 0
    assert (await trimmed(store, later_ms=DEDUP_WINDOW_MS + HOUR_MS)).batches == stored
    assert await count(store, "hermes_batch") == 0


@pytest.mark.one_database
async def test_marks_of_dead_readers_are_deleted_and_other_marks_are_kept(store: SqlStore) -> None:
    now_ms = clock.now_ms()
    for name, value in {"seen:dead": now_ms, "seen:counting": 77, "orders:done": now_ms}.items():
        await store.marks.put(name, value)
    assert (await trimmed(store, later_ms=2 * DEDUP_WINDOW_MS)).marks == 1
    assert await store.marks.get("seen:dead") is None
    assert await store.marks.get("seen:counting") == 77
    assert await store.marks.get("orders:done") == now_ms


async def test_the_next_trim_completes_an_interrupted_one(store: SqlStore) -> None:
    await fill(store, MIDDLE, 250, keys="first-{0} order-{0}")
    lane = lane_of(store, MIDDLE)
    await store.database.execute("UPDATE hermes_lane SET first_id = 201 WHERE lane = :lane", lane=lane.number)
    went = await trimmed(store, later_ms=0)
    assert went.messages == 0
    assert await count(store, lane.table) == 50
    assert await count(store, "key_orders") == 50
    assert await store.bounds(MIDDLE) == QueueBounds(200, 250)


async def test_a_leftover_detached_partition_is_dropped(store: SqlStore) -> None:
    if store.database.dialect != "postgresql":
        pytest.skip("this database does not detach partitions")
    lane = lane_of(store, MIDDLE)
    await fill(store, MIDDLE, 250)
    await store.database.execute(f'ALTER TABLE "{lane.table}" DETACH PARTITION "{lane.table}$p0"')
    assert await drop_detached_partitions(store.database, lane.table) == 1
    assert await drop_detached_partitions(store.database, lane.table) == 0
    oldest = (await list_partitions(store.database, lane.table))[0]
    assert oldest.end == 201


async def test_a_long_transaction_delays_the_drop_and_blocks_no_append_or_read(store: SqlStore) -> None:
    if store.database.dialect == "sqlite":
        pytest.skip("this database drops rows without DDL")
    await fill(store, MIDDLE, 250)
    lane = lane_of(store, MIDDLE)
    old = (await list_partitions(store.database, lane.table))[:2]
    async with store.database.transaction() as session:  # a slow report
        await session.fetch(f'SELECT COUNT(*) FROM "{lane.table}"')
        dropping = asyncio.create_task(drop_partitions(store.database, lane.table, old))
        slowest = 0.0
        for number in range(10):
            begun = clock.now_ms()
            await store.append(MIDDLE, [make_draft(f"while waiting {number}")])
            assert isinstance(await store.read(MIDDLE, 240, count_max=100), Slice)
            await store.find_by_key("orders", "nothing")
            slowest = max(slowest, clock.now_ms() - begun)
        assert not dropping.done()
        assert slowest < 2_500
    await dropping
    assert not {each.name for each in old} & {each.name for each in await list_partitions(store.database, lane.table)}


async def test_appends_and_reads_continue_during_retention(database_url: str, store: SqlStore) -> None:
    settings = SETTINGS.model_copy(update={"retention_hours": 0, "retains_unread": True})
    total = 1500
    seen: list[int] = []
    async with await SqlStore.open(database_url, SETTINGS) as reader:

        async def write() -> None:
            for start in range(0, total, 10):
                await store.append(MIDDLE, [make_draft(f"{start + at}", keys=f"a-{start + at} b") for at in range(10)])

        async def read() -> None:
            while len(seen) < total:
                found = await reader.read(MIDDLE, len(seen), count_max=64)
                assert not isinstance(found, Moved), f"{found} was deleted before it was read"
                if isinstance(found, Slice):
                    seen.extend(int(message.body) for message in decode_messages(found))
                    await reader.offsets.commit("g", MIDDLE, len(seen))

        async def keep() -> None:
            while len(seen) < total:
                await trim(store.database, store.catalog, settings, clock.now_ms() + HOUR_MS, grace_s=0.01)

        await reader.offsets.commit("g", MIDDLE, 0)
        await reader.offsets.flush()
        async with asyncio.timeout(60), asyncio.TaskGroup() as work:
            for job in (write, read, keep):
                work.create_task(job())
        assert seen == list(range(total))
        await reader.offsets.flush()
    await trimmed(store, settings)
    assert (await store.bounds(MIDDLE)).first >= total - ROWS


# -- dead letters ------------------------------------------------------------------------------------------------------

LETTERS = Queue("%DLQ%billing", 0)


async def test_dead_letters_are_deleted_after_their_own_time_whether_read_or_not(database_url: str) -> None:
    born_ms = clock.now_ms()
    settings = SqlSettings()
    now_ms = [born_ms]
    async with await SqlStore.open(database_url, settings, now_ms=lambda: now_ms[0]) as store:
        await store.catalog.put_topic(Topic(name=LETTERS.topic, write_queues=1, read_queues=1))
        await store.append(LETTERS, [make_draft(f"old {number}", keys="k1 k2") for number in range(5)])
        now_ms[0] += DAY_MS
        await store.append(LETTERS, [make_draft(f"new {number}", keys="k1 k2") for number in range(3)])
        await store.offsets.commit("auditors", LETTERS, 1)
        await store.offsets.flush()
        table = lane_of(store, LETTERS).table
        for later_ms, first in ((3 * DAY_MS - HOUR_MS, 0), (3 * DAY_MS + HOUR_MS, 5), (5 * DAY_MS, 8)):
            await trim(store.database, store.catalog, settings, born_ms + later_ms, grace_s=0)
            assert await store.bounds(LETTERS) == QueueBounds(first, 8)
            assert await count(store, table) == 8 - first
        ((keys,),) = await store.database.fetch(f'SELECT COUNT(*) FROM "{table.replace("msg_middle_", "key_")}"')
        assert keys == 0
        assert (await store.append(LETTERS, [make_draft("next")])).offset == 8


async def test_full_partitions_of_dead_letters_are_dropped(store: SqlStore) -> None:
    await store.catalog.put_topic(Topic(name=LETTERS.topic, write_queues=1, read_queues=1))
    await fill(store, LETTERS, 250)
    settings = SETTINGS.model_copy(update={"retention_hours": 1000, "dead_letter_retention_hours": 1})
    went = await trimmed(store, settings)
    assert went.messages == 250
    assert went.partitions_dropped == (0 if store.database.dialect == "sqlite" else 2)
    assert await count(store, lane_of(store, LETTERS).table) == 0


async def test_ended_half_messages_are_kept_for_their_time_and_open_ones_for_ever(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow.store.sql.maintenance.retention.ROWS_PER_DELETE", 2)
    now_ms = clock.now_ms()
    for state in ("half", "rolled_back", "given_up"):
        for _ in range(5):
            await store.database.execute(
                "INSERT INTO hermes_half"
                " (producer_group, topic, queue_id, body, source_ip, properties, at, check_at, state, ended_at)"
                " VALUES ('g', 'orders', 0, :body, 0, :body, 1, 1, :state, :ended)",
                body=b"",
                state=state,
                ended=None if state == "half" else now_ms,
            )
    assert (await trimmed(store, later_ms=3 * DAY_MS - HOUR_MS)).half_messages == 0
    assert (await trimmed(store, later_ms=3 * DAY_MS + HOUR_MS)).half_messages == 10
    assert await count(store, "hermes_half", "state = 'half'") == 5
