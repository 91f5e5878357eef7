"""The tables and operations of the SQL store: tables, columns, reads and commits, and ids without gaps.

Each test runs on every database. Tests of tables and columns query the database directly, not the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from tests.support.drafts import decode_bodies, decode_messages, make_draft
from tests.support.topic_cursor import open_at_end, open_for_group, read_span

from sparrow import clock
from sparrow.broker.access.requirements import REQUIREMENTS
from sparrow.model.access.permissions import TokenAction, has_action, is_send_allowed
from sparrow.model.access.token import SECRET_BYTES, Token
from sparrow.model.errors import GroupRequired, IllegalName, Refused, StorageError, TooLarge, UnknownTopic
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.priority import Priority, priority_of_queue
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group, Topic
from sparrow.settings import MIB, SqlSettings
from sparrow.store.spi import AtEnd, Slice
from sparrow.store.sql.append.batch_ids import BatchId
from sparrow.store.sql.append.insert import take_ids
from sparrow.store.sql.drivers.errors import DatabaseRefused, DuplicateKey, MissingPartition
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import draft_of_row, row_of_draft, rows_of_drafts
from sparrow.store.sql.state import committed_offsets
from sparrow.store.sql.state.committed_offsets import CommitFenced
from sparrow.store.sql.state.resend_ranges import IDS_PER_ROW
from sparrow.wire import record
from sparrow.wire.codes import RequestCode
from sparrow.wire.hashes import tags_code
from sparrow.wire.properties import encode

TOPIC = "testtopic"
HIGH, MIDDLE, LOW = (Queue(TOPIC, priority) for priority in Priority)
SEED_COLUMNS = ["id", "body", "source_ip", "token", "ref_key", "timestamp", "properties"]
RESEND_COLUMNS = ["id", "group_id", "start", "end", "priority", "timestamp", "token", "attempt"]
OFFSET_COLUMNS = ["id", "group_id", "offset", "priority", "epoch", "updated_at"]
EIGHT = {
    *(f"{what}_{priority.label}_{TOPIC}" for what in ("msg", "resend") for priority in Priority),
    f"offset_{TOPIC}",
    f"resend_offset_{TOPIC}",
}
TABLES = {
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
    "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
}
COLUMNS = {
    "mysql": "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
    " AND table_name = :name ORDER BY ordinal_position",
    "postgresql": "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public'"
    " AND table_name = :name ORDER BY ordinal_position",
    "sqlite": "SELECT name FROM pragma_table_info(:name) ORDER BY cid",
}

Open = Callable[..., Awaitable[SqlStore]]


@pytest.fixture
async def open_store(database_url: str) -> AsyncIterator[Open]:
    """Return a function that opens the database again, as another broker would."""
    opened: list[SqlStore] = []

    async def open_it(**options: object) -> SqlStore:
        opened.append(await SqlStore.open(database_url, **options))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
async def empty(open_store: Open) -> SqlStore:
    return await open_store()


@pytest.fixture
async def store(empty: SqlStore) -> SqlStore:
    await empty.catalog.put_topic(topic(TOPIC))
    return empty


def topic(name: str, *, parts: int = 1) -> Topic:
    return Topic(name=name, write_queues=parts, read_queues=parts)


def numbers(count: int, start: int = 1) -> list[Draft]:
    """Return messages whose bodies are consecutive numbers."""
    return [make_draft(f"{start + at}") for at in range(count)]


def lane(store: SqlStore, queue: Queue) -> Lane:
    return store.catalog.lane(queue)


def ids(found: Sequence[StoredMessage]) -> list[int]:
    return [message.queue_offset + 1 for message in found]


async def tables(store: SqlStore) -> set[str]:
    return {name for (name,) in await store.database.fetch(TABLES[store.database.dialect])}


async def columns(store: SqlStore, name: str) -> list[str]:
    return [column for (column,) in await store.database.fetch(COLUMNS[store.database.dialect], name=name)]


async def column(store: SqlStore, name: str, of: str) -> list[object]:
    """Return a column of a table, ordered by id."""
    return [value for (value,) in await store.database.fetch(f'SELECT "{name}" FROM "{of}" ORDER BY id')]


async def next_id(store: SqlStore, of: Lane) -> int:
    ((found,),) = await store.database.fetch("SELECT next_id FROM hermes_lane WHERE lane = :lane", lane=of.number)
    return int(found)


async def trimmed(store: SqlStore, queue: Queue, first_id: int) -> None:
    """Delete messages as retention does."""
    of = lane(store, queue)
    await store.database.execute(f"UPDATE hermes_lane SET first_id = {first_id} WHERE lane = {of.number}")
    await store.database.execute(f'DELETE FROM "{of.table}" WHERE id < {first_id}')


async def insert(store: SqlStore, into: str, **values: object) -> int:
    """Insert a row directly, as a person with database access would."""
    names, places = ", ".join(f'"{name}"' for name in values), ", ".join(f":{name}" for name in values)
    return await store.database.execute(f'INSERT INTO "{into}" ({names}) VALUES ({places})', **values)


async def insert_message(store: SqlStore, **values: object) -> int:
    word = {"body": b"", "source_ip": 0, "token": store.catalog.anonymous_token, "timestamp": 1, "properties": b""}
    return await insert(store, f"msg_high_{TOPIC}", **(word | values))


async def insert_resend(store: SqlStore, **values: object) -> int:
    word: dict[str, object] = {"id": 1, "start": 1, "end": 1, "priority": "low", "timestamp": 1}
    return await insert(store, f"resend_low_{TOPIC}", **(word | values))


async def resent(store: SqlStore, group: str, queue: Queue) -> list[int]:
    """Return the ids that are resent to a group, and mark them done."""
    ranges, last = await store.resend_ranges.next_ranges(group, lane(store, queue))
    found: list[int] = []
    for each in ranges:
        found += ids((await read_span(store, queue, each.start - 1, each.end)).messages)
    async with store.database.transaction() as session:
        await store.resend_ranges.mark_done(session, group, lane(store, queue), last)
    return found


# -- tables and names -------------------------------------------------------------------------------------------------


async def test_low_messages_have_a_table_with_the_specified_columns(store):
    assert await columns(store, "msg_low_testtopic") == SEED_COLUMNS
    await store.append(LOW, [make_draft("low")])
    assert await column(store, "body", "msg_low_testtopic") == [b"low"]


@pytest.mark.one_database
async def test_middle_messages_have_a_table_with_the_same_columns(store):
    assert await columns(store, "msg_middle_testtopic") == SEED_COLUMNS
    await store.append(MIDDLE, [make_draft("middle")])
    assert await column(store, "body", "msg_middle_testtopic") == [b"middle"]


@pytest.mark.one_database
async def test_high_messages_have_a_table_with_the_same_columns(store):
    assert await columns(store, "msg_high_testtopic") == SEED_COLUMNS
    await store.append(HIGH, [make_draft("high")])
    assert await column(store, "body", "msg_high_testtopic") == [b"high"]


async def test_low_resend_ranges_have_a_table(store):
    assert await columns(store, "resend_low_testtopic") == RESEND_COLUMNS


@pytest.mark.one_database
async def test_the_middle_resend_table_name_contains_its_underscore(store):
    assert await columns(store, "resend_middle_testtopic") == RESEND_COLUMNS
    assert "resend_middletesttopic" not in await tables(store)


@pytest.mark.one_database
async def test_high_resend_ranges_have_a_table(store):
    assert await columns(store, "resend_high_testtopic") == RESEND_COLUMNS


async def test_committed_offsets_have_a_table(store):
    assert await columns(store, "offset_testtopic") == OFFSET_COLUMNS


async def test_resend_offsets_have_a_table_with_the_same_columns(store):
    assert await columns(store, "resend_offset_testtopic") == OFFSET_COLUMNS


async def test_all_topics_share_one_token_table(empty):
    before = await tables(empty)
    for number in range(3):
        await empty.catalog.put_topic(topic(f"topic{number}"))
    new = await tables(empty) - before
    assert "meta_token" in before
    assert [name for name in new if "token" in name] == []


async def test_a_topic_created_twice_has_its_eight_tables_and_keeps_its_messages(store):
    before = await tables(store)
    assert before >= EIGHT
    await store.append(HIGH, numbers(3))
    await store.catalog.put_topic(topic(TOPIC))
    assert await tables(store) == before
    assert decode_bodies(await store.read(HIGH, 0)) == [b"1", b"2", b"3"]
    assert await store.database.fetch("SELECT topic, state FROM hermes_topic") == [(TOPIC, "active")]


@pytest.mark.parametrize("way", ["opened", "created"])
@pytest.mark.parametrize("gone", [0, 1, 5, 8])
async def test_an_interrupted_creation_of_a_topic_is_completed(store, open_store, gone, way):
    whole = await tables(store)
    names = sorted(EIGHT)
    for name in names[len(names) - gone :]:
        await store.database.execute(f'DROP TABLE "{name}"')
    if gone:  # lanes are inserted after the tables
        await store.database.execute("DELETE FROM hermes_lane WHERE topic = :topic", topic=TOPIC)
    await store.database.execute("UPDATE hermes_topic SET state = 'creating'")
    if way == "opened":
        other = await open_store()
    else:
        other = store
        assert TOPIC not in await other.catalog.list_topics(), "a half-written row must not be served"
        await other.catalog.put_topic(topic(TOPIC))
    assert await tables(other) == whole
    assert await other.database.fetch("SELECT topic, state FROM hermes_topic") == [(TOPIC, "active")]
    for queue in (HIGH, MIDDLE, LOW):
        assert (await other.append(queue, [make_draft("works")])).offset == 0
        assert await other.resend_ranges.request(lane(other, queue), "g", 1, 1) == 1


async def test_several_brokers_can_create_the_same_topic_concurrently(database_url):
    stores = await asyncio.gather(*(SqlStore.open(database_url) for _ in range(4)))
    try:
        await asyncio.gather(*(store.catalog.put_topic(topic(TOPIC)) for store in stores))
        places = await asyncio.gather(*(store.append(HIGH, [make_draft("x")]) for store in stores))
        assert sorted(place.offset for place in places) == [0, 1, 2, 3]
        assert await tables(stores[0]) >= EIGHT
        ((count,),) = await stores[0].database.fetch("SELECT COUNT(*) FROM hermes_lane")
        assert count == 6
    finally:
        for store in stores:
            await store.close()


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["TestTopic", "testTopic", "TESTTOPIC", "täst", "-a", ".a", "_a", "a$1", "a" * 41, ""])
async def test_an_illegal_topic_name_is_refused_and_creates_nothing(empty, name):
    before = await tables(empty)
    with pytest.raises(IllegalName):
        await empty.catalog.put_topic(topic(name))
    assert await tables(empty) == before
    assert await empty.database.fetch("SELECT * FROM hermes_topic") == []
    assert await empty.database.fetch("SELECT * FROM hermes_lane") == []


@pytest.mark.parametrize(("name", "parts"), [("a.b-c_d", 1), ("0", 1), ("select", 2), ("a" * 40, 11)])
async def test_legal_topic_names_work_with_parts_and_partitions(open_store, name, parts):
    store = await open_store(settings=SqlSettings(partition_rows=100))
    await store.catalog.put_topic(topic(name, parts=parts))
    last = Queue(name, 3 * parts - 1)
    for at in range(0, 450, 50):
        assert (await store.append(last, numbers(50, at))).offset == at
    assert (await store.bounds(last)) == QueueBounds(0, 450)
    await store.offsets.commit("g", last, 7)
    await store.resend_ranges.request(lane(store, last), "g", 1, 1)
    reopened = await open_store()
    assert len((await reopened.read(last, 0, count_max=1000)).sizes) == 450


@pytest.mark.one_database
async def test_tables_of_part_0_have_plain_names_and_others_a_number_suffix(store):
    await store.catalog.put_topic(topic(TOPIC, parts=3))
    found = await tables(store)
    assert found >= EIGHT
    for part in (1, 2):
        assert found >= {f"{name}${part}" for name in EIGHT}
    assert not any(name.endswith(("$0", "$3")) for name in found)
    await store.append(Queue(TOPIC, 3), [make_draft("part 1, high")])
    assert await column(store, "body", "msg_high_testtopic$1") == [b"part 1, high"]
    assert await column(store, "body", "msg_high_testtopic") == []


# -- columns of messages ----------------------------------------------------------------------------------------------


async def test_message_ids_are_dense_from_1_in_the_order_of_appends(store):
    await store.append(HIGH, numbers(3))
    await store.append(LOW, numbers(1))
    for each in numbers(20, 4):
        await store.append(HIGH, [each])
    assert await column(store, "id", "msg_high_testtopic") == list(range(1, 24))
    assert await column(store, "body", "msg_high_testtopic") == [f"{number}".encode() for number in range(1, 24)]
    assert await column(store, "id", "msg_low_testtopic") == [1]


@pytest.mark.parametrize("count", [1, 30])
async def test_an_append_to_a_lane_that_is_gone_inserts_nothing(store, count):
    old = lane(store, HIGH)
    rows, batch_ids = rows_of_drafts(numbers(count), [store.catalog.anonymous_token] * count), [BatchId(1, 1, 0, count)]
    await store.catalog.delete_topic(TOPIC)
    with pytest.raises(UnknownTopic):
        await store.database.append(old, rows, batch_ids, 1)
    await store.catalog.put_topic(topic(TOPIC))
    with pytest.raises(UnknownTopic):
        await store.database.append(old, rows, batch_ids, 1)
    assert await column(store, "id", old.table) == []
    assert (await store.append(HIGH, numbers(count))).offset == 0


async def test_any_body_including_an_empty_one_is_read_back_unchanged(store, open_store):
    sent = [bytes(range(256)), b"", *(bytes([value]) for value in range(256)), b"'\\\";--\0%s:x" * 100]
    await store.append(MIDDLE, [Draft(body=body) for body in sent])
    for reader in (store, await open_store()):
        assert decode_bodies(await reader.read(MIDDLE, 0, count_max=1000)) == sent
    assert await column(store, "body", "msg_middle_testtopic") == sent


async def test_the_largest_body_is_read_back_and_a_larger_one_is_refused(open_store):
    store = await open_store(settings=SqlSettings(message_bytes_max=16 * MIB - 1))
    await store.catalog.put_topic(topic(TOPIC))
    largest = min(16 * MIB - 1, store.database.packet_bytes_max - 1024)
    with pytest.raises(TooLarge):
        await store.append(LOW, [Draft(body=bytes(largest + 2048))])
    await store.append(LOW, [Draft(body=b"\xff" * largest)])
    ((size,),) = await store.database.fetch("SELECT LENGTH(body) FROM msg_low_testtopic")
    assert size == largest
    reader = await open_store()
    assert decode_bodies(await reader.read(LOW, 0)) == [b"\xff" * largest]


async def test_an_ipv4_address_is_stored_as_a_number_and_an_ipv6_address_as_a_property(store, open_store):
    v4, v6 = bytes([11, 122, 209, 20]), bytes.fromhex("20010db8000000000000000000000001")
    await store.append(
        HIGH,
        [
            Draft(body=b"4", born_host=v4 + (10911).to_bytes(4, "big")),
            Draft(body=b"6", born_host=v6 + (10911).to_bytes(4, "big"), sys_flag=record.BORN_HOST_IPV6_FLAG),
        ],
    )
    assert await column(store, "source_ip", "msg_high_testtopic") == [192598292, 0]
    (_, properties) = await column(store, "properties", "msg_high_testtopic")
    assert bytes(properties)[-16:] == v6
    for reader in (store, await open_store()):
        found = [
            (message.born_host.ip, message.born_host.port) for message in decode_messages(await reader.read(HIGH, 0))
        ]
        assert found == [(v4, 10911), (v6, 10911)]


@pytest.mark.one_database
async def test_a_message_row_contains_the_token_id_of_its_producer(store):
    name = "appid-340101;sid-p0912"
    await insert(store, "meta_token", id=231, token=name, type="p", secret=bytes(SECRET_BYTES))
    token = (await store.tokens.all())[name]
    assert token.id == 231
    signed = make_draft("signed")
    signed.token = token.id
    await store.append_nowait(HIGH, [signed])
    await store.append_nowait(HIGH, [make_draft("from nobody")])
    assert await column(store, "token", "msg_high_testtopic") == [231, store.catalog.anonymous_token]


@pytest.mark.parametrize("keys", ["none", "some", "several"])
async def test_the_rows_of_a_large_batch_are_those_of_its_messages(store, keys):
    await insert(store, "meta_token", id=231, token="sender", type="p", secret=bytes(SECRET_BYTES))
    await store.tokens.all()
    hosts = [bytes([10, 0, 0, 1]), bytes([255, 1, 2, 3]), bytes.fromhex("20010db8000000000000000000000001")]
    drafts = []
    for at in range(60):
        key = {"none": "", "some": f"k{at}" if at % 3 else "", "several": f"k{at} shared x{at}"}[keys]
        draft = make_draft(bytes([at, 0x27, 0x5C, 0]) * at, keys=key, tags=f"tag {at} '%;\\")
        draft.born_host, draft.token = hosts[at // 20] + bytes(4), 231 * (at % 2)
        drafts.append(draft)
    assert (await store.append(HIGH, drafts)).offset == 0
    assert (await store.append(HIGH, drafts)).offset == 60
    anonymous = store.catalog.anonymous_token
    expected = [row_of_draft(draft, draft.token or anonymous) for draft in drafts] * 2
    for name in ("body", "source_ip", "token", "ref_key", "properties"):
        assert await column(store, name, "msg_high_testtopic") == [getattr(row, name) for row in expected], name
    assert await column(store, "id", "msg_high_testtopic") == list(range(1, 121))
    assert len(await store.find_by_key(TOPIC, "shared", limit=200)) == (120 if keys == "several" else 0)
    assert len(await store.find_by_key(TOPIC, "x59")) == (2 if keys == "several" else 0)


async def test_keys_are_found_in_every_priority_and_compared_byte_by_byte(store):
    for queue in (HIGH, MIDDLE, LOW):
        await store.append(queue, [make_draft(f"{priority_of_queue(queue.id).label}", unique="order-4423")])
    longest = "k" * 255
    others = ["Order-4423", "order-4423 ", "ORDER-4423", "order-442", "örder", longest, longest[1:]]
    await store.append(LOW, [make_draft(f"{key}", unique=key) for key in others])
    found = [record.decode(raw).body for raw in await store.find_by_key(TOPIC, "order-4423")]
    assert sorted(found) == [b"high", b"low", b"middle"]
    for key in others:
        assert [record.decode(raw).body.decode() for raw in await store.find_by_key(TOPIC, key)] == [key]
    assert (await column(store, "ref_key", "msg_high_testtopic")) == [b"order-4423"]
    await store.append(HIGH, [make_draft("no key")])
    assert (await column(store, "ref_key", "msg_high_testtopic"))[-1] is None


@pytest.mark.one_database
async def test_store_times_never_decrease_even_if_the_clock_is_set_back(open_store):
    times = [1_422_588_646_000, 1_422_588_647_000, 1_422_588_640_000, 1_422_588_648_000]
    now = iter(times)
    store = await open_store()
    await store.catalog.put_topic(topic(TOPIC))
    store._now_ms = lambda: next(now)
    for _ in times:
        await store.append(HIGH, [Draft(body=b"", born_ms=1_422_588_646_123)])
    assert await column(store, "timestamp", "msg_high_testtopic") == [times[0], times[1], times[1], times[3]]
    for properties in await column(store, "properties", "msg_high_testtopic"):
        assert draft_of_row(b"", 0, bytes(properties))[0].born_ms == 1_422_588_646_123


@pytest.mark.one_database
async def test_store_times_never_decrease_across_brokers_with_different_clocks(store, open_store):
    late = await open_store(now_ms=lambda: clock.now_ms() - 60_000)
    for _ in range(5):
        await store.append(HIGH, [make_draft("now")])
        await late.append(HIGH, [make_draft("late")])
    times = await column(store, "timestamp", "msg_high_testtopic")
    assert times == sorted(times)
    assert len(times) == 10


async def test_properties_with_any_text_are_read_back(store, open_store):
    said = {
        "name": "麻雀 🐦",
        "ключ": "значение",
        "a:b": "c:d:e",
        "lines": "one\ntwo\r\n",
        "quotes": "'\"\\%s:x",
        "s": " ",
    }
    await store.append(MIDDLE, [Draft(body=b"", properties=encode(said))])
    for reader in (store, await open_store()):
        (message,) = decode_messages(await reader.read(MIDDLE, 0))
        assert message.properties == said
    (packed,) = await column(store, "properties", "msg_middle_testtopic")
    assert (packed[0], bytes(packed[36:])) == (2, encode(said))


@pytest.mark.one_database
async def test_properties_of_a_sender_change_no_field_of_the_record(store, open_store):
    forged = {"sys.born": "1", "sys.flag": "77", "sys.src": "::1", "mine": "kept"}
    await store.append(MIDDLE, [Draft(body=b"", properties=encode(forged), born_ms=5, flag=2)])
    (message,) = decode_messages(await (await open_store()).read(MIDDLE, 0))
    assert (message.properties, message.born_ms, message.flag) == (forged, 5, 2)
    assert message.born_host.ip == bytes([127, 0, 0, 1])


async def test_postgres_plans_a_read_once(store, open_store):
    if store.database.dialect != "postgresql":
        pytest.skip("the other databases keep no plans, or always do")
    await store.append(MIDDLE, numbers(50))
    reader = await open_store()
    for offset in range(20):
        await reader.read(MIDDLE, offset, count_max=10)
    plans = await reader.database.fetch(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE 'SELECT id, body%'"
    )
    assert [tuple(row) for row in plans] == [(20, 0)]


@pytest.mark.one_database
async def test_rows_of_older_brokers_are_read_among_newer_ones(store, open_store):
    await store.append(MIDDLE, numbers(3))
    old = bytes.fromhex("0100020004000000045441475354616741000800000001") + b"sys.born5"
    await store.database.execute("UPDATE msg_middle_testtopic SET properties = :old WHERE id = 2", old=old)
    await store.database.execute("UPDATE msg_middle_testtopic SET properties = NULL WHERE id = 3")
    reader = await open_store()
    first, second, third = decode_messages(await reader.read(MIDDLE, 0))
    assert [message.body for message in (first, second, third)] == [b"1", b"2", b"3"]
    assert (second.tags, second.born_ms, third.properties) == ("TagA", 5, {})
    found = await reader.read(MIDDLE, 0, tags_codes=frozenset({tags_code("TagA")}))
    assert (decode_bodies(found), found.next_offset) == ([b"2"], 3)


# -- columns of resends, offsets and tokens ---------------------------------------------------------------------------


async def test_resend_ids_are_dense_even_after_a_rollback(store):
    await store.resend_ranges.request(lane(store, LOW), "g", 1, 1)
    resend_lane = store.catalog.resend_lanes[LOW]
    with pytest.raises(ZeroDivisionError):
        async with store.database.transaction() as session:
            assert (await take_ids(session, resend_lane, 3, 1))[0] == 2
            raise ZeroDivisionError
    await store.resend_ranges.request(lane(store, LOW), "g", 1, 3 * IDS_PER_ROW)
    await store.resend_ranges.request(lane(store, HIGH), "g", 1, 1)
    assert await column(store, "id", "resend_low_testtopic") == [1, 2, 3, 4]
    assert await column(store, "id", "resend_high_testtopic") == [1]
    assert await next_id(store, resend_lane) == 5


@pytest.mark.one_database
async def test_a_resend_without_a_group_reaches_every_group_and_one_with_a_group_only_that(store):
    await store.append(LOW, numbers(9))
    for group in ("g1", "g2"):
        await store.resend_ranges.register_group(group, lane(store, LOW))
    await store.resend_ranges.request(lane(store, LOW), None, 1, 2)
    await store.resend_ranges.request(lane(store, LOW), "g2", 7, 7)
    assert await column(store, "group_id", "resend_low_testtopic") == [None, "g2"]
    assert await resent(store, "g1", LOW) == [1, 2]
    assert await resent(store, "g2", LOW) == [1, 2, 7]


@pytest.mark.one_database
async def test_a_resend_range_includes_both_ends(store):
    await store.append(LOW, numbers(20))
    await store.resend_ranges.register_group("g", lane(store, LOW))
    await store.resend_ranges.request(lane(store, LOW), "g", 17, 17)
    assert await column(store, "start", "resend_low_testtopic") == [17]
    assert await column(store, "end", "resend_low_testtopic") == [17]
    assert await resent(store, "g", LOW) == [17]


@pytest.mark.one_database
async def test_a_resend_range_with_its_end_before_its_start_is_refused(store):
    with pytest.raises(Refused, match="5 to 4"):
        await store.resend_ranges.request(lane(store, LOW), "g", 5, 4)
    with pytest.raises(DatabaseRefused):
        await insert_resend(store, start=5, end=4)
    assert await column(store, "id", "resend_low_testtopic") == []
    assert await insert_resend(store, start=5, end=5) == 1


@pytest.mark.one_database
async def test_a_resend_has_the_priority_of_its_table(store):
    for queue in (HIGH, MIDDLE, LOW):
        await store.resend_ranges.request(lane(store, queue), "g", 1, 2 * IDS_PER_ROW)
        word = priority_of_queue(queue.id).label
        assert await column(store, "priority", f"resend_{word}_testtopic") == [word, word]
    with pytest.raises(DatabaseRefused):
        await insert_resend(store, id=3, priority="urgent")


@pytest.mark.one_database
async def test_a_resend_row_contains_the_time_of_the_broker(open_store):
    store = await open_store(now_ms=lambda: 1_700_000_000_123)
    await store.catalog.put_topic(topic(TOPIC))
    await store.resend_ranges.request(lane(store, LOW), "g", 1, 1)
    assert await column(store, "timestamp", "resend_low_testtopic") == [1_700_000_000_123]


@pytest.mark.one_database
async def test_a_resend_row_contains_the_token_of_its_request(store):
    await store.resend_ranges.request(lane(store, LOW), "g", 1, 1)
    await store.resend_ranges.request(lane(store, LOW), "g", 1, 1, token=231)
    assert await column(store, "token", "resend_low_testtopic") == [None, 231]


@pytest.mark.one_database
async def test_offset_rows_are_found_by_group_and_not_by_id(store, open_store):
    await store.append(HIGH, numbers(9))
    for group, offset in (("g1", 7), ("g2", 2)):
        await store.offsets.commit(group, HIGH, offset)
    await store.offsets.flush()
    await store.database.execute("UPDATE offset_testtopic SET id = id + 1000")
    other = await open_store()
    assert [await other.offsets.committed(group, HIGH) for group in ("g1", "g2")] == [7, 2]
    await other.offsets.commit("g1", HIGH, 8)
    await other.offsets.flush()
    assert await column(other, "offset", "offset_testtopic") == [8, 2]


async def test_a_commit_is_outdated_after_a_pause_that_the_loop_has_not_noticed(store, open_store, monkeypatch):
    """A process that was stopped continues in the middle of an iteration of its event loop, whose time stood still."""
    other = await open_store()
    await other.offsets.commit("g", HIGH, 7)
    await other.offsets.flush()
    loop = asyncio.get_running_loop()
    stopped_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: stopped_s)
    monkeypatch.setattr(committed_offsets, "FRESH_COMMIT_S", 0.0)
    store.offsets.commit_nowait("g", HIGH, 3)
    found = await store.offsets.committed("g", HIGH)
    monkeypatch.undo()
    assert found == 7


async def test_a_group_has_exactly_one_offset_row_per_priority(store, open_store):
    for queue, offset in ((HIGH, 3), (MIDDLE, 2), (LOW, 1)):
        await store.append(queue, numbers(9))
        await store.offsets.commit("g", queue, offset)
    await store.offsets.commit("g", HIGH, 4)
    await store.offsets.flush()
    other = await open_store()
    assert [await other.offsets.committed("g", queue) for queue in (HIGH, MIDDLE, LOW)] == [4, 2, 1]
    with pytest.raises(DuplicateKey):
        await insert(store, "offset_testtopic", group_id="g", offset=9, priority="high")
    assert await insert(store, "offset_testtopic", group_id="G", offset=9, priority="high") == 1


@pytest.mark.one_database
@pytest.mark.parametrize("later", ["commit", "pull"])
async def test_commits_take_effect_in_the_order_in_which_they_arrive(store, monkeypatch, later):
    """The first commit of a group waits for the previous offset in the database; another one may overtake it there."""
    fetch, may_answer = store.database.fetch, asyncio.Event()

    async def slow_answer(sql, **values):
        if values.get("group_id") != "g":
            return await fetch(sql, **values)
        monkeypatch.setattr(store.database, "fetch", fetch)
        found = await fetch(sql, **values)
        await may_answer.wait()
        return found

    monkeypatch.setattr(store.database, "fetch", slow_answer)
    first = asyncio.create_task(store.offsets.commit("g", HIGH, 3))
    await asyncio.sleep(0)
    if later == "commit":
        await store.offsets.commit("g", HIGH, 7)
    else:
        store.offsets.commit_nowait("g", HIGH, 7)
    may_answer.set()
    await first
    await store.offsets.flush()
    assert await store.offsets.committed("g", HIGH) == 7
    await store.offsets.commit("g", HIGH, 5)
    assert await store.offsets.committed("g", HIGH) == 5, "a smaller offset that arrives later rewinds the group"


async def test_two_brokers_can_commit_for_a_new_group_concurrently(store, open_store):
    other = await open_store()
    await store.append(HIGH, numbers(50))
    for number in range(20):
        await store.offsets.commit(f"g{number}", HIGH, 3)
        await other.offsets.commit(f"g{number}", HIGH, 3)
        await asyncio.gather(store.offsets.flush(), other.offsets.flush())
    assert await column(store, "offset", "offset_testtopic") == [3] * 20


@pytest.mark.one_database
async def test_the_committed_offset_is_the_id_of_the_last_consumed_message(store, open_store):
    await store.append(HIGH, numbers(3325))
    reader = await open_for_group(store, TOPIC, "g")
    assert ids(await reader.read(3322)) == list(range(1, 3323))
    await reader.commit()
    await store.offsets.flush()
    assert await column(store, "offset", "offset_testtopic") == [3322]
    assert ids(await (await open_for_group(await open_store(), TOPIC, "g")).read(2)) == [3323, 3324]


async def test_the_priority_column_accepts_only_high_middle_or_low(store):
    for word in ("high", "middle", "low"):
        assert await insert(store, "offset_testtopic", group_id="g", offset=1, priority=word) == 1
    for word in ("urgent", "", "highest"):
        with pytest.raises(DatabaseRefused):
            await insert(store, "offset_testtopic", group_id="g2", offset=1, priority=word)


@pytest.mark.one_database
async def test_resend_offsets_are_independent_of_committed_offsets(store, open_store):
    await store.append(LOW, numbers(9))
    await store.offsets.commit("g", LOW, 9)
    await store.resend_ranges.register_group("g", lane(store, LOW))
    for message_id in (2, 4):
        await store.resend_ranges.request(lane(store, LOW), "g", message_id, message_id)
    assert await resent(store, "g", LOW) == [2, 4]
    await store.offsets.flush()
    assert await column(store, "offset", "resend_offset_testtopic") == [2], (
        "the offset must be that of the last finished row"
    )
    assert await column(store, "offset", "offset_testtopic") == [9]
    await store.offsets.commit("g", LOW, 5)
    await store.offsets.flush()
    other = await open_store()
    assert await other.resend_ranges.offset("g", lane(other, LOW)) == 2
    assert await other.offsets.committed("g", LOW) == 5
    assert await resent(other, "g", LOW) == []


@pytest.mark.one_database
async def test_deleting_a_group_deletes_its_resend_registration(store):
    await store.append(LOW, numbers(9))
    await store.offsets.commit("g", LOW, 9)
    for group in ("g", "other"):
        await store.resend_ranges.register_group(group, lane(store, LOW))
    await store.catalog.delete_group("g")
    assert await store.resend_ranges.groups(lane(store, LOW)) == ["other"]
    assert await store.offsets.committed("g", LOW) is None


async def test_issuing_a_token_twice_keeps_the_first(store, open_store):
    first = Token(id=0, name="appid-340101;sid-p0912", kind="p", secret=b"1" * SECRET_BYTES, created_ms=1)
    await store.tokens.put(first)
    issued = (await store.tokens.all())[first.name]
    other = await open_store()
    await other.tokens.put(Token(id=0, name=first.name, kind="c", secret=b"2" * SECRET_BYTES, created_ms=2))
    assert await other.tokens.all() == {first.name: issued}
    assert (issued.secret, issued.kind, issued.created_ms) == (first.secret, "p", 1)
    upper = Token(id=0, name=first.name.upper(), kind="c", secret=b"3" * SECRET_BYTES, created_ms=3)
    await store.tokens.put(upper)
    assert (await other.tokens.all())[upper.name].id not in (0, issued.id)


@pytest.mark.one_database
async def test_a_token_type_is_p_or_c_in_the_column(store):
    for kind in ("x", "", "cp", "P"):
        with pytest.raises(Refused):
            await store.tokens.put(
                Token(id=0, name=f"t{kind}", kind=kind, secret=bytes(SECRET_BYTES), created_ms=1)  # type: ignore[arg-type]
            )
    for kind in ("x", "", "pc"):
        with pytest.raises(DatabaseRefused):
            await insert(store, "meta_token", token="raw", type=kind)
    assert await store.tokens.all() == {}


@pytest.mark.one_database
async def test_a_consumer_token_cannot_send_and_a_producer_token_cannot_read(store):
    for kind in ("p", "c"):
        await store.tokens.put(Token(id=0, name=kind, kind=kind, secret=bytes(SECRET_BYTES), created_ms=1))
    tokens = await store.tokens.all()
    assert is_send_allowed(tokens["p"], TOPIC)
    assert not is_send_allowed(tokens["c"], TOPIC)
    reads = {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.QUERY_MESSAGE,
    }
    assert all(REQUIREMENTS[code].actions == (TokenAction.SUBSCRIBE,) for code in reads)
    assert has_action(tokens["c"], TokenAction.SUBSCRIBE)
    assert not has_action(tokens["p"], TokenAction.SUBSCRIBE)


@pytest.mark.one_database
async def test_reserved_looking_token_names_can_be_issued(store):
    for name in ("anonymous", "nobody", "admin", "root"):
        await store.tokens.put(Token(id=0, name=name, kind="c", secret=bytes(SECRET_BYTES), created_ms=1))
        assert (await store.tokens.all())[name].kind == "c"
        assert (await store.tokens.all())[name].id != store.catalog.anonymous_token


# -- operations -------------------------------------------------------------------------------------------------------


async def test_a_batch_is_appended_completely_or_not_at_all_with_consecutive_ids(store, open_store):
    appended = await store.append(HIGH, numbers(10))
    assert (appended.queue, appended.offset) == (HIGH, 0)
    assert [place & 0xFFFFFFFF for place in appended.physical_offsets] == list(range(1, 11))
    # A foreign row has the id of the third of five messages: the other four must not become visible.
    await insert_message(store, id=13, body=b"stranger")
    with pytest.raises(StorageError, match="did not write"):
        await store.append(HIGH, numbers(5, 11))
    reader = await open_store()
    assert len(decode_bodies(await reader.read(HIGH, 0))) == 10
    assert await column(store, "id", "msg_high_testtopic") == [*range(1, 11), 13]
    await store.database.execute("DELETE FROM msg_high_testtopic WHERE id = 13")
    assert (await store.append(HIGH, numbers(5, 11))).offset == 10


async def test_readers_never_see_a_partial_batch(store, open_store):
    reader = await open_store()
    sizes = [1, 7, 50, 200, 3]
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    seen = {0}

    async def look() -> None:
        while max(seen) < ends[-1]:
            seen.add((await reader.bounds(HIGH)).end)

    looking = asyncio.create_task(look())
    for size in sizes:
        await store.append(HIGH, numbers(size))
    await asyncio.wait_for(looking, 12)
    assert seen <= {0, *ends}


async def test_concurrent_readers_of_new_messages_all_get_them(store, open_store):
    await store.catalog.put_topic(topic("wide", parts=4))
    queues = [Queue("wide", number) for number in range(4 * len(Priority))]
    reader = await open_store()
    # As with InnoDB: before a reader returns a message, it commits a mark of its own.
    reader.database.shows_before_durable = True
    for count in range(1, 6):
        for queue in queues:
            await store.append(queue, numbers(1))
        # The mark is missing or was deleted by retention, so that all of these reads insert it.
        await store.database.execute("DELETE FROM hermes_mark WHERE name LIKE 'seen:%'")
        found = await asyncio.gather(*map(reader.bounds, queues))
        assert found == [QueueBounds(0, count)] * len(queues)


async def test_concurrent_first_writes_of_marks_and_groups_keep_one_value(store, open_store):
    others = [store, *[await open_store() for _ in range(3)]]
    for number in range(10):
        await asyncio.gather(
            *(other.marks.put(f"mark-{number}", value) for value, other in enumerate(others)),
            *(other.catalog.put_group(Group(name=f"group-{number}")) for other in others),
        )
        assert await store.marks.get(f"mark-{number}") in range(len(others))
    assert {f"group-{number}" for number in range(10)} <= (await (await open_store()).catalog.list_groups()).keys()


@pytest.mark.one_database
async def test_a_consumer_without_a_group_reads_only_new_messages_and_stores_no_offset(store):
    for queue in (HIGH, MIDDLE, LOW):
        await store.append(queue, numbers(10))
    reader = await open_at_end(store, TOPIC)
    assert await reader.read(100) == []
    await store.append(MIDDLE, numbers(1, 11))
    assert ids(await reader.read(100)) == [11]
    with pytest.raises(GroupRequired):
        await reader.commit()
    await store.append(MIDDLE, numbers(4, 12))
    await store.offsets.flush()
    assert await column(store, "group_id", "offset_testtopic") == []
    assert await (await open_at_end(store, TOPIC)).read(100) == [], (
        "after a reconnect reading must start at the new maximum"
    )
    assert ids(await reader.read(100)) == [12, 13, 14, 15]


@pytest.mark.one_database
async def test_a_read_at_offset_5_starts_with_id_6(store, open_store):
    await store.append(HIGH, numbers(9))
    for reader in (store, await open_store()):
        assert ids(decode_messages(await reader.read(HIGH, 5, count_max=3))) == [6, 7, 8]


@pytest.mark.one_database
async def test_a_read_is_filled_with_high_then_middle_then_low(store, open_store):
    for queue, count in ((LOW, 9), (HIGH, 3), (MIDDLE, 4)):
        await store.append(queue, numbers(count))
    for each in (store, await open_store()):
        found = await (await open_for_group(each, TOPIC, "g")).read(10)
        assert [priority_of_queue(message.queue_id).label for message in found] == ["high"] * 3 + ["middle"] * 4 + [
            "low"
        ] * 3
        assert ids(found) == [1, 2, 3, 1, 2, 3, 4, 1, 2, 3]
    reader = await open_for_group(store, TOPIC, "g")
    await reader.read(10)
    await store.append(HIGH, [make_draft("hurry")])
    found = await reader.read(10)
    assert found[0].body == b"hurry"
    assert ids(found[1:]) == [4, 5, 6, 7, 8, 9]


@pytest.mark.one_database
async def test_all_parts_of_a_priority_are_read_before_the_next_priority(store):
    await store.catalog.put_topic(topic(TOPIC, parts=2))
    for queue_id in range(6):
        await store.append(Queue(TOPIC, queue_id), numbers(5))
    reader = await open_for_group(store, TOPIC, "g")
    found = [message for _ in range(10) for message in await reader.read(3)]
    assert [priority_of_queue(message.queue_id) for message in found] == sorted(
        priority_of_queue(message.queue_id) for message in found
    )
    for queue_id in range(6):
        assert ids([message for message in found if message.queue_id == queue_id]) == [1, 2, 3, 4, 5]
    assert {message.queue_id for message in found[:6]} == {0, 3}, "neither queue may wait until the other is empty"


@pytest.mark.one_database
async def test_a_group_continues_after_its_committed_offset_in_each_priority(store, open_store):
    for queue in (HIGH, MIDDLE, LOW):
        await store.append(queue, numbers(5))
    reader = await open_for_group(store, TOPIC, "g")
    assert len(await reader.read(7)) == 7
    await reader.commit()
    assert len(await reader.read(4)) == 4, "these messages were read but not committed"
    await store.close()
    found = await (await open_for_group(await open_store(), TOPIC, "g")).read(100)
    assert [(priority_of_queue(message.queue_id).label, message.queue_offset + 1) for message in found] == [
        *(("middle", number) for number in (3, 4, 5)),
        *(("low", number) for number in (1, 2, 3, 4, 5)),
    ]


@pytest.mark.one_database
async def test_a_new_group_starts_with_the_oldest_message(store, open_store):
    await store.append(HIGH, numbers(110))
    await trimmed(store, HIGH, 101)
    reader = await open_for_group(await open_store(), TOPIC, "new")
    assert ids(await reader.read(100)) == list(range(101, 111))


@pytest.mark.one_database
async def test_a_commit_with_an_epoch_does_not_move_the_offset_back(store):
    await store.append(HIGH, numbers(20))
    await store.offsets.commit("g", HIGH, 1)
    await store.offsets.flush()
    await store.offsets.commit_with_epoch("g", lane(store, HIGH), 10, 1)
    await store.offsets.commit_with_epoch("g", lane(store, HIGH), 7, 1)
    assert await column(store, "offset", "offset_testtopic") == [10]


async def test_a_commit_with_an_old_epoch_is_fenced(store):
    await store.append(HIGH, numbers(20))
    await store.offsets.commit("g", HIGH, 1)
    await store.offsets.flush()
    await store.offsets.commit_with_epoch("g", lane(store, HIGH), 10, 5)
    with pytest.raises(CommitFenced, match="'g'"):
        await store.offsets.commit_with_epoch("g", lane(store, HIGH), 15, 4)
    await store.offsets.commit("g", HIGH, 16)  # this process has no epoch
    await store.offsets.flush()
    assert await store.database.fetch('SELECT "offset", epoch FROM offset_testtopic') == [(10, 5)]
    await store.offsets.commit_with_epoch("g", lane(store, HIGH), 12, 5)
    assert await column(store, "offset", "offset_testtopic") == [12]


async def test_a_lease_gets_a_newer_epoch_when_its_holder_changes(open_store):
    first = await open_store(settings=SqlSettings(lease_ms=60_000))
    second = await open_store(settings=SqlSettings(lease_ms=60_000))
    epoch = await first.leases.acquire("group:t:g")
    assert epoch is not None
    assert await second.leases.acquire("group:t:g") is None
    assert await first.leases.acquire("group:t:g") == epoch, "a renewed lease must keep its epoch"
    await first.leases.release("group:t:g")
    assert await second.leases.acquire("group:t:g") == epoch + 1
    assert await first.leases.acquire("group:t:g") is None


@pytest.mark.one_database
async def test_a_resend_reaches_only_its_group_and_in_order(store, open_store):
    await store.append(LOW, numbers(9))
    for group in ("g1", "g2"):
        reader = await open_for_group(store, TOPIC, group)
        await reader.read(100)
        await reader.commit()
        await store.resend_ranges.register_group(group, lane(store, LOW))
    await store.resend_ranges.request(lane(store, LOW), "g1", 1, 5, token=231)
    other = await open_store()
    assert await resent(other, "g1", LOW) == [1, 2, 3, 4, 5]
    assert await resent(other, "g2", LOW) == []
    assert await resent(store, "g1", LOW) == [], "once"
    assert await (await open_for_group(store, TOPIC, "g1")).read(100) == [], "the committed offset must not change"


@pytest.mark.one_database
async def test_a_resend_requires_a_group(store):
    await store.append(LOW, numbers(9))
    reader = await open_at_end(store, TOPIC)
    with pytest.raises(GroupRequired, match="a resend"):
        await store.resend_ranges.request(lane(store, LOW), reader.group_for("a resend"), 1, 5)
    assert await column(store, "id", "resend_low_testtopic") == []
    assert (await open_for_group(store, TOPIC, "g")).group_for("a resend") == "g"


@pytest.mark.one_database
async def test_a_low_resend_range_is_read_from_the_low_table(store):
    for queue in (HIGH, MIDDLE, LOW):
        await store.append(
            queue, [make_draft(f"{priority_of_queue(queue.id).label} {number}") for number in range(1, 4)]
        )
    await store.resend_ranges.register_group("g", lane(store, LOW))
    await store.resend_ranges.request(lane(store, LOW), "g", 2, 3)
    ((_, start, end, _),) = (await store.resend_ranges.next_ranges("g", lane(store, LOW)))[0]
    found = await read_span(store, LOW, start - 1, end)
    assert [message.body for message in found.messages] == [b"low 2", b"low 3"]
    assert (await store.resend_ranges.next_ranges("g", lane(store, HIGH)))[0] == []


@pytest.mark.one_database
async def test_messages_deleted_by_retention_are_skipped_and_counted(store, open_store):
    await store.append(LOW, numbers(20))
    await store.resend_ranges.register_group("g", lane(store, LOW))
    await store.resend_ranges.request(lane(store, LOW), "g", 3, 12)
    await trimmed(store, LOW, 8)
    other = await open_store()
    ((_, start, end, _),) = (await other.resend_ranges.next_ranges("g", lane(other, LOW)))[0]
    found = await read_span(other, LOW, start - 1, end)
    assert (ids(found.messages), found.missing) == ([8, 9, 10, 11, 12], 5)
    gone = await read_span(other, LOW, 0, 5)
    assert (gone.messages, gone.missing) == ([], 5)


@pytest.mark.one_database
async def test_a_group_and_a_consumer_without_a_group_do_not_affect_each_other(store):
    await store.append(HIGH, numbers(5))
    group, alone = await open_for_group(store, TOPIC, "g"), await open_at_end(store, TOPIC)
    await store.append(HIGH, numbers(5, 6))
    assert ids(await alone.read(2)) == [6, 7]
    assert ids(await group.read(3)) == [1, 2, 3]
    await group.commit()
    assert ids(await alone.read(100)) == [8, 9, 10]
    assert ids(await group.read(100)) == [4, 5, 6, 7, 8, 9, 10]
    assert ids(await (await open_for_group(store, TOPIC, "g")).read(1)) == [4]


# -- ids without gaps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["done", "rolled back"])
async def test_ids_are_assigned_committed_and_visible_in_the_same_order(store, open_store, outcome):
    """An uncommitted transaction with ids blocks the next append; a rollback returns its ids."""
    other, reader = await open_store(), await open_store()
    of = lane(store, HIGH)
    try:
        async with store.database.transaction() as session:
            assert (await take_ids(session, of, 1, 1))[0] == 1
            waiting = asyncio.ensure_future(other.append(HIGH, [make_draft("second")]))
            _, pending = await asyncio.wait({waiting}, timeout=0.3)
            assert pending, "the row of the lane must be locked"
            assert await reader.read(HIGH, 0) == AtEnd(QueueBounds(0, 0))
            if outcome == "rolled back":
                raise ZeroDivisionError
            await session.execute(
                f'INSERT INTO "{of.table}" (id, body, source_ip, token, "timestamp", properties)'
                " VALUES (1, :body, 0, :token, 1, :properties)",
                body=b"first",
                token=store.catalog.anonymous_token,
                properties=b"",
            )
    except ZeroDivisionError:
        pass
    await waiting
    found = [b"first", b"second"] if outcome == "done" else [b"second"]
    assert decode_bodies(await reader.read(HIGH, 0)) == found
    assert await column(store, "id", of.table) == list(range(1, len(found) + 1))
    assert await next_id(store, of) == len(found) + 1


async def test_appends_of_many_brokers_have_no_gap_and_are_read_in_order(store, open_store):
    writers = [await open_store() for _ in range(4)]
    reader = await open_store()
    total, seen = 4 * 15 * 3, []

    async def write(writer: SqlStore) -> None:
        for _ in range(15):
            await writer.append(HIGH, numbers(3))

    async def read() -> None:
        while len(seen) < total:
            found = await reader.read(HIGH, len(seen))
            if isinstance(found, Slice):
                seen.extend(ids(decode_messages(found)))

    await asyncio.wait_for(asyncio.gather(read(), *map(write, writers)), 60)
    assert seen == list(range(1, total + 1))


async def test_a_manually_inserted_row_is_refused_or_detected_by_the_next_append(store, open_store):
    await store.append(HIGH, numbers(2))
    if store.database.dialect == "sqlite":  # SQLite fills in the id
        assert await insert_message(store, body=b"by hand") == 1
        with pytest.raises(StorageError, match="sparrow store check"):
            await store.append(HIGH, numbers(1, 3))
        assert decode_bodies(await (await open_store()).read(HIGH, 0)) == [b"1", b"2"]
        await store.database.execute("DELETE FROM msg_high_testtopic WHERE id = 3")
    else:
        with pytest.raises((DatabaseRefused, MissingPartition)):  # PostgreSQL: no partition accepts a row without an id
            await insert_message(store, body=b"by hand")
    assert (await store.append(HIGH, numbers(1, 3))).offset == 2
    assert decode_bodies(await store.read(HIGH, 0)) == [b"1", b"2", b"3"]


@pytest.mark.one_database
@pytest.mark.parametrize("hole", [{1}, {3}, {3, 4, 5}, {10}, {1, 3, 5, 7, 9}])
async def test_readers_skip_accidental_gaps_in_the_ids(store, open_store, hole):
    await store.append(HIGH, numbers(10))
    places = ", ".join(map(str, hole))
    await store.database.execute(f"DELETE FROM msg_high_testtopic WHERE id IN ({places})")
    other = await open_store()
    left = [number for number in range(1, 11) if number not in hole]
    for count in (1, 2, 100):
        reader = await open_for_group(other, TOPIC, f"g{count}")
        found: list[int] = []
        while more := ids(await reader.read(count)):
            found += more
        assert found == left
        assert reader.position(HIGH) == 10, "the position must be at the end, so that the lag is 0"
    small = await other.read(HIGH, 0, bytes_max=1)
    assert ids(decode_messages(small)) == left[:1]
