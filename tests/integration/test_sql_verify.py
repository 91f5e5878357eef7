"""`sparrow store check` on databases: a sound store passes, and each kind of damage is reported."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.drafts import make_draft

from sparrow import clock
from sparrow.model.errors import Refused
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.settings import SqlSettings
from sparrow.store.sql.drivers.database import open_database
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.maintenance.check import check_store, skip_ids
from sparrow.store.sql.maintenance.id_ranges import merge_ranges, missing_ids, subtract
from sparrow.store.sql.maintenance.retention import trim

LOW, MIDDLE = Queue("orders", Priority.LOW), Queue("orders", Priority.MIDDLE)
RETRY = Queue("%RETRY%g", 0)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    """Three lanes with messages, a group on each, and one range to resend; each query of the check covers seven ids."""
    async with await SqlStore.open(database_url, SqlSettings(partition_rows=100)) as opened:
        await opened.catalog.put_topic(
            Topic(name="orders", write_queues=1, read_queues=LANE_COUNT, sys_flag=LANES_SYS_FLAG)
        )
        await opened.catalog.put_topic(Topic(name=RETRY.topic, write_queues=1, read_queues=1))
        for queue in (MIDDLE, LOW, RETRY):
            for start in range(0, 30, 10):
                await opened.append(
                    queue, [make_draft("x", keys=f"a-{start + at} b-{start + at} c") for at in range(10)]
                )
            await opened.offsets.commit("g", queue, 30)
        await opened.offsets.flush()
        await opened.resend_ranges.register_group("g", opened.catalog.lanes[MIDDLE])
        await opened.resend_ranges.request(opened.catalog.lanes[MIDDLE], "g", 3, 5)
        yield opened


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrow.store.sql.maintenance.lane_check.IDS_PER_QUERY", 7)
    monkeypatch.setattr("sparrow.store.sql.maintenance.lane_check.KEYS_PER_QUERY", 7)


async def findings(store: SqlStore) -> list[str]:
    return [f"{finding.where}: {finding.what}" for finding in await check_store(store.database)]


async def test_a_sound_database_passes_and_progress_reaches_the_total(store: SqlStore) -> None:
    told: list[tuple[int, int]] = []
    assert await check_store(store.database, lambda done, total: told.append((done, total))) == []
    assert told == sorted(told)
    assert told[-1] == (91, 91), "90 messages and a resend range must be checked"


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM msg_middle_orders WHERE id = 12", "msg_middle_orders: id 12 is missing"),
        ("DELETE FROM msg_middle_orders WHERE id > 26", "msg_middle_orders: ids 27 to 30 are missing"),
        ("DELETE FROM msg_middle_orders WHERE id < 10", "msg_middle_orders: ids 1 to 9 are missing"),
        (
            "UPDATE hermes_lane SET next_id = 29 WHERE topic = 'orders' AND kind = 'm' AND priority = 'middle'",
            "msg_middle_orders: has id 30, but the next id of its lane is 29: run",
        ),
        ('UPDATE msg_low_orders SET "timestamp" = 1 WHERE id = 5', "msg_low_orders: has store times that decrease"),
        ('UPDATE msg_low_orders SET "timestamp" = 1 WHERE id = 15', "msg_low_orders: has store times that decrease"),
        (
            "UPDATE offset_orders SET \"offset\" = 31 WHERE priority = 'low'",
            "offset_orders: group g has committed low up to 31",
        ),
        ('UPDATE resend_offset_orders SET "offset" = 2', "resend_offset_orders: group g has committed middle up to 2"),
        ('UPDATE resend_middle_orders SET "end" = 31', "resend_middle_orders: row 1 resends 3 to 31 of middle"),
        ("DELETE FROM resend_middle_orders", "resend_middle_orders: id 1 is missing"),
        (
            "UPDATE key_orders SET id = 99 WHERE priority = 'low' AND id = 7",
            "'b-6' refers to low 99, which does not exist",
        ),
        ("UPDATE hermes_topic SET state = 'creating' WHERE topic = 'orders'", "orders: is unfinished (creating)"),
        ("UPDATE hermes_topic SET state = 'deleting' WHERE topic = 'orders'", "orders: is unfinished (deleting)"),
        ("DELETE FROM hermes_topic WHERE topic = 'orders'", "hermes_lane: has lanes of topic orders"),
        ("DELETE FROM hermes_lane WHERE kind = 'r' AND priority = 'low'", "orders: has no lane for part 0, r, low"),
        ("DROP TABLE msg_high_orders", "msg_high_orders: cannot be read"),
        ("UPDATE hermes_schema SET version = 77", "hermes_schema: has version 77"),
    ],
)
async def test_each_kind_of_damage_is_reported(store: SqlStore, damage: str, said: str) -> None:
    await store.database.execute(damage)
    found = await findings(store)
    assert any(said in finding for finding in found), found


@pytest.mark.one_database
async def test_many_gaps_are_counted_and_some_are_listed(store: SqlStore) -> None:
    await store.database.execute("DELETE FROM msg_middle_orders WHERE id IN (2, 4, 6, 8, 10, 12, 14)")
    found = [finding for finding in await findings(store) if finding.startswith("msg")]
    assert len(found) == 6
    assert found[-1] == "msg_middle_orders: has 7 holes in all, 7 ids are missing"


async def test_a_database_without_a_store_is_reported(database_url: str) -> None:
    database = await open_database(database_url)
    try:
        (found,) = await check_store(database)
        assert "not a Sparrow store" in found.what
    finally:
        await database.close()


@pytest.mark.one_database
async def test_messages_deleted_by_retention_are_no_finding(store: SqlStore) -> None:
    await store.append(MIDDLE, [make_draft("x", keys="a b") for _ in range(100)])
    settings = SqlSettings(partition_rows=100, retention_hours=0, retains_unread=False)
    assert (await trim(store.database, store.catalog, settings, clock.now_ms() + 1000, grace_s=0)).messages >= 100
    assert await findings(store) == []


async def test_a_database_in_use_gives_no_false_finding(store: SqlStore) -> None:
    settings = SqlSettings(partition_rows=100, retention_hours=0, retains_unread=False)
    is_over = False

    async def change() -> None:
        while not is_over:
            await store.append(MIDDLE, [make_draft("x", keys="a b c") for _ in range(50)])
            await store.offsets.commit("g", MIDDLE, (await store.bounds(MIDDLE)).end)
            await trim(store.database, store.catalog, settings, clock.now_ms() + 1000, grace_s=0)

    async with asyncio.TaskGroup() as work:
        work.create_task(change())
        for _ in range(5):
            assert await findings(store) == []
        is_over = True
    assert (await store.bounds(MIDDLE)).first > 0, "messages must have been added and deleted meanwhile"


@pytest.mark.one_database
async def test_a_registered_gap_is_no_finding_and_appends_continue_after_it(store: SqlStore) -> None:
    lane = store.catalog.lanes[MIDDLE]
    assert await skip_ids(store.database, lane.number, 251, "the backup was a day old", clock.now_ms()) == [(31, 251)]
    assert await findings(store) == []
    appended = await store.append(MIDDLE, [make_draft("after it")])
    assert appended.offset == 250
    assert await findings(store) == []
    assert await store.bounds(MIDDLE) == QueueBounds(0, 251)
    await store.database.execute("DELETE FROM hermes_gap")
    assert "msg_middle_orders: ids 31 to 250 are missing" in await findings(store)


@pytest.mark.one_database
async def test_skipping_ids_keeps_existing_messages(store: SqlStore) -> None:
    lane = store.catalog.lanes[MIDDLE]
    await store.database.execute(
        "UPDATE hermes_lane SET next_id = 20, last_ts = 1 WHERE lane = :lane", lane=lane.number
    )
    await store.database.execute("DELETE FROM msg_middle_orders WHERE id = 25")
    assert await skip_ids(store.database, lane.number, 31, "the lane's row was old", clock.now_ms()) == [(25, 26)]
    assert [finding for finding in await findings(store) if finding.startswith("msg")] == []


@pytest.mark.one_database
async def test_skipping_ids_backwards_or_in_an_unknown_lane_is_refused(store: SqlStore) -> None:
    lane = store.catalog.lanes[MIDDLE]
    with pytest.raises(Refused, match="give an id above that"):
        await skip_ids(store.database, lane.number, 31, "why", 0)
    with pytest.raises(Refused, match="no lane 999"):
        await skip_ids(store.database, 999, 31, "why", 0)


def test_id_ranges_are_merged_subtracted_and_searched_for_gaps() -> None:
    assert list(missing_ids([2, 3, 6], (1, 8))) == [(1, 2), (4, 6), (7, 8)]
    assert list(missing_ids([], (1, 3))) == [(1, 3)]
    assert subtract([(1, 10)], [(3, 5), (9, 12)]) == [(1, 3), (5, 9)]
    assert merge_ranges([(5, 7), (1, 3), (3, 4)]) == [(1, 4), (5, 7)]
