"""Copies of topics between log and SQL stores; an interrupted copy can be continued."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from tests.support.drafts import decode_messages, make_draft
from tests.support.log_stores import small_settings
from typer.testing import CliRunner

from sparrow import clock
from sparrow.broker.consume.references import make_reference
from sparrow.cli.main import app
from sparrow.model.access.token import Token
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.protocol import PERM_INHERIT, PERM_READ, PERM_WRITE
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group, Topic, validate_topic_name
from sparrow.settings import SqlSettings
from sparrow.store.copy.copier import CopyReport, copy_store
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice, Store
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.maintenance.check import check_store
from sparrow.store.sql.maintenance.retention import trim
from sparrow.store.sql.schema.table_names import validate_new_topic
from sparrow.wire import properties

LOG = small_settings(segment_bytes=4 << 20, queue_file_entries=1000, index_slots=1000, index_entries=4000)
DATABASE = SqlSettings(partition_rows=1000)
ORDERS, OTHERS, URGENT, RETRY = (
    Queue("orders", 0),
    Queue("orders", 1),
    Queue("urgent", read_queue_id(1, Priority.HIGH)),
    Queue("%RETRY%g", 0),
)
TOKENS = [
    Token(id=1, name="billing", kind="c", secret=b"b" * 32, created_ms=5, addresses=("10.0.0.0/8", "::1")),
    Token(id=2, name="shop", kind="p", secret=b"s" * 32, created_ms=6, revoked_ms=7),
]


async def fill(store: Store) -> None:
    """Store two user topics, a retry topic, system topics in a log store, groups, offsets and tokens."""
    await store.catalog.put_topic(Topic(name="orders", read_queues=2, write_queues=2, attributes={"kind": "test"}))
    await store.catalog.put_topic(
        Topic(name="urgent", write_queues=2, read_queues=2 * LANE_COUNT, sys_flag=LANES_SYS_FLAG)
    )
    await store.catalog.put_topic(Topic(name="%RETRY%g", read_queues=1, write_queues=1))
    if isinstance(store, LogStore):
        await store.catalog.put_topic(Topic(name="SCHEDULE_TOPIC_XXXX"))
        await store.catalog.put_topic(Topic(name="DefaultCluster", permission=PERM_READ | PERM_WRITE | PERM_INHERIT))
    await append(store, ORDERS, 1203)
    await append(store, OTHERS, 30)
    await append(store, URGENT, 40)
    await append(store, RETRY, 1, reconsume_times=3)
    await store.catalog.put_group(Group(name="g", retries_max=5))
    await store.catalog.put_group(Group(name="idle"))
    await store.offsets.commit("g", ORDERS, 1100)
    await store.offsets.commit("g", URGENT, 40)
    await store.offsets.commit("without-configuration", OTHERS, 7)
    for token in TOKENS:
        await store.tokens.put(token)


async def append(store: Store, queue: Queue, count: int, **more: object) -> None:
    for start in range(0, count, 400):
        await store.append(queue, [made(f"{queue}:{at}", **more) for at in range(start, min(start + 400, count))])


def made(name: str, **more: object) -> Draft:
    found = make_draft(name.encode() + bytes(range(256)), tags="t", keys=f"k-{name} 键", unique=f"u-{name}", flag=9)
    found.properties += properties.encode({"note": "a:b\nc"})
    for field, value in {"born_ms": 1234, "born_host": b"\x0a\0\0\1\0\0\x10\0", **more}.items():
        setattr(found, field, value)
    return found


async def contents(store: Store, queue: Queue) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    first, end = await store.bounds(queue)
    while len(found) < end - first:
        read = await store.read(queue, first + len(found), count_max=500, bytes_max=8 << 20)
        assert isinstance(read, Slice)
        found += decode_messages(read)
    return found


def said(message: StoredMessage) -> tuple[object, ...]:
    """Return the fields that the sender determined."""
    names = ("body", "properties", "flag", "sys_flag", "born_ms", "born_host", "reconsume_times")
    return tuple(getattr(message, name) for name in names)


async def assert_same(source: Store, source_queue: Queue, target: Store, target_queue: Queue) -> None:
    ours, theirs = await contents(source, source_queue), await contents(target, target_queue)
    assert list(map(said, theirs)) == list(map(said, ours))
    assert [message.queue_offset for message in theirs] == list(range(len(ours)))
    assert {message.topic for message in theirs} == {target_queue.topic}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LogStore]:
    async with LogStore(tmp_path / "log", LOG) as store:
        yield store


@pytest.fixture
async def database_store(database_url: str) -> AsyncIterator[SqlStore]:
    async with await SqlStore.open(database_url, DATABASE) as store:
        yield store


@pytest.fixture
async def other_log(tmp_path: Path) -> AsyncIterator[LogStore]:
    async with LogStore(tmp_path / "other", LOG) as store:
        yield store


check_name = partial(validate_new_topic, allowed="lower")


async def into_database(source: Store, target: Store, **more: object) -> CopyReport:
    return await copy_store(source, target, source_name="the source", check_name=check_name, **more)  # type: ignore[arg-type]


async def into_log(source: Store, target: Store, **more: object) -> CopyReport:
    return await copy_store(source, target, source_name="the source", check_name=validate_topic_name, **more)  # type: ignore[arg-type]


MIDDLE_ORDERS, MIDDLE_OTHERS = (Queue("orders", read_queue_id(part, Priority.MIDDLE)) for part in (0, 1))


async def test_a_log_store_is_copied_into_a_database_and_back(
    log: LogStore, database_store: SqlStore, other_log: LogStore
) -> None:
    await fill(log)
    told: list[tuple[int, int, str]] = []
    there = await into_database(log, database_store, progress=lambda *words: told.append(words))
    assert (there.topics, there.messages, there.groups, there.tokens) == (3, 1274, 2, 2)
    assert told[-1][:2] == (1274, 1274)
    assert told == sorted(told, key=lambda words: words[0])
    assert "SCHEDULE_TOPIC_XXXX" in there.notes[0]
    assert "DefaultCluster" in there.notes[0]
    pairs = {ORDERS: MIDDLE_ORDERS, OTHERS: MIDDLE_OTHERS, URGENT: URGENT, RETRY: RETRY}
    for source, target in pairs.items():
        await assert_same(log, source, database_store, target)
    await database_store.offsets.flush()
    assert await database_store.offsets.committed("g", MIDDLE_ORDERS) == 1100
    assert await database_store.offsets.committed("without-configuration", MIDDLE_OTHERS) == 7
    assert await database_store.catalog.list_groups() == await log.catalog.list_groups()
    assert tokens_in(await database_store.tokens.all()) == tokens_in({token.name: token for token in TOKENS})
    assert (await database_store.catalog.list_topics())["orders"].attributes == {"kind": "test"}
    assert await check_store(database_store.database) == []

    await into_log(database_store, other_log)
    for source, target in pairs.items():
        await assert_same(log, source, other_log, target)
    assert await other_log.offsets.committed("g", MIDDLE_ORDERS) == 1100
    assert await other_log.offsets.committed("g", URGENT) == 40
    assert await other_log.catalog.list_groups() == await log.catalog.list_groups()
    assert tokens_in(await other_log.tokens.all()) == tokens_in(await log.tokens.all())
    topic = (await other_log.catalog.list_topics())["orders"]
    assert topic.sys_flag & LANES_SYS_FLAG
    assert (topic.write_queues, topic.read_queues) == (2, 6)
    assert "SCHEDULE_TOPIC_XXXX" not in await other_log.catalog.list_topics()


def tokens_in(found: Mapping[str, Token]) -> set[tuple[object, ...]]:
    """Return the tokens without their ids, which a database assigns."""
    return {(token.name, token.permissions, token.secret, token.revoked_ms) for token in found.values()}


class Interrupted(Exception):
    pass


def breaks_after(count: int) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, topic: str) -> None:
        if done >= count:
            raise Interrupted

    return progress


@pytest.mark.one_database
async def test_an_interrupted_copy_continues_without_duplicates(log: LogStore, database_store: SqlStore) -> None:
    await fill(log)
    for count in (500, 1000, 1210):
        with pytest.raises(Interrupted):
            await into_database(log, database_store, progress=breaks_after(count))
    done = await into_database(log, database_store)
    assert 0 < done.messages < 100
    await assert_same(log, ORDERS, database_store, MIDDLE_ORDERS)
    await assert_same(log, URGENT, database_store, URGENT)
    await append(log, ORDERS, 3)
    assert (await into_database(log, database_store)).messages == 3, "only messages added since must be copied"
    assert (await into_database(log, database_store)).messages == 0
    assert len(await contents(database_store, MIDDLE_ORDERS)) == 1206


@pytest.mark.one_database
@pytest.mark.parametrize("to_log", [False, True])
async def test_a_batch_stored_before_its_mark_is_not_copied_again(
    log: LogStore, database_store: SqlStore, other_log: LogStore, monkeypatch: pytest.MonkeyPatch, to_log: bool
) -> None:
    await fill(log)
    target: Store = other_log if to_log else database_store
    put = target.marks.put

    async def killed(name: str, value: int) -> None:
        if value == 1000:
            raise Interrupted
        await put(name, value)

    copied = into_log if to_log else into_database
    with monkeypatch.context() as patched:
        patched.setattr(target.marks, "put", killed)
        with pytest.raises(Interrupted):
            await copied(log, target)
    queue = ORDERS if to_log else MIDDLE_ORDERS
    assert (await target.bounds(queue)).end == 1000
    assert (await copied(log, target)).messages == 273
    await assert_same(log, ORDERS, target, queue)


@pytest.mark.one_database
async def test_foreign_messages_in_the_target_are_refused(log: LogStore, database_store: SqlStore) -> None:
    await fill(log)
    await database_store.catalog.put_topic(Topic(name="orders", write_queues=2, read_queues=2))
    await database_store.append(MIDDLE_ORDERS, [make_draft("mine")])
    with pytest.raises(Refused, match="not copied from this source"):
        await into_database(log, database_store)
    await database_store.catalog.delete_topic("orders")
    await into_database(log, database_store)
    await database_store.append(MIDDLE_OTHERS, [make_draft("since")])
    with pytest.raises(Refused, match="orders/4 in the target"):
        await into_database(log, database_store)
    with pytest.raises(Refused, match="not copied from this source"):
        await copy_store(log, database_store, source_name="another source", check_name=check_name)


@pytest.mark.one_database
async def test_a_copied_trimmed_queue_starts_at_0_and_its_offsets_are_shifted(
    database_store: SqlStore, other_log: LogStore
) -> None:
    await fill(database_store)
    settings = SqlSettings(partition_rows=1000, retention_hours=0)
    await database_store.offsets.commit("slow", ORDERS, 1002)
    await database_store.offsets.flush()
    await trim(database_store.database, database_store.catalog, settings, clock.now_ms() + 1000, grace_s=0)
    first, end = await database_store.bounds(ORDERS)
    assert 0 < first <= 1002
    await database_store.offsets.commit("behind", ORDERS, 3)
    await database_store.offsets.flush()
    done = await into_log(database_store, other_log, chosen=["orders"])
    assert await other_log.bounds(ORDERS) == QueueBounds(0, end - first)
    assert await other_log.offsets.committed("slow", ORDERS) == 1002 - first
    assert await other_log.offsets.committed("behind", ORDERS) == 0
    assert any(f"orders/0 began at offset {first:,}" in note for note in done.notes)
    assert set(await other_log.catalog.list_topics()) == {"orders"}
    assert set(await other_log.catalog.list_groups()) <= {"slow", "behind", "g"}


@pytest.mark.one_database
async def test_retention_between_two_runs_is_reported_and_the_copy_continues(
    database_store: SqlStore, other_log: LogStore
) -> None:
    await fill(database_store)
    with pytest.raises(Interrupted):
        await into_log(database_store, other_log, chosen=["orders"], progress=breaks_after(500))
    settings = SqlSettings(partition_rows=1000, retention_hours=0)
    await database_store.offsets.commit("g", ORDERS, 1000)
    await database_store.offsets.flush()
    await trim(database_store.database, database_store.catalog, settings, clock.now_ms() + 1000, grace_s=0)
    assert (await database_store.bounds(ORDERS)).first == 1000
    done = await into_log(database_store, other_log, chosen=["orders"])
    assert "orders/0: retention deleted 500 messages before they were copied" in done.notes
    assert [message.body[:12] for message in await contents(other_log, ORDERS)][498:502] == [
        *(b"orders/0:498", b"orders/0:499"),
        *(b"orders/0:100", b"orders/0:100"),
    ]
    assert await other_log.offsets.committed("g", ORDERS) == 500


async def test_illegal_table_names_are_refused_before_anything_is_copied(log: LogStore, tmp_path: Path) -> None:
    async with await SqlStore.open(f"sqlite:///{tmp_path}/x.db") as target:
        await fill(log)
        await log.catalog.put_topic(Topic(name="TestTopic", read_queues=1, write_queues=1))
        await log.append(Queue("TestTopic", 0), [made("upper")])
        await log.append(
            RETRY, [make_draft(), Draft(body=b"again", properties=properties.encode({"RETRY_TOPIC": "TestTopic"}))]
        )
        with pytest.raises(Refused, match=r"'TestTopic'.*--rename TestTopic=testtopic"):
            await into_database(log, target)
        assert await target.catalog.list_topics() == {}
        with pytest.raises(Refused, match="get the name 'orders'"):
            await into_database(log, target, renames={"TestTopic": "orders"})
        with pytest.raises(UnknownTopic):
            await into_database(log, target, chosen=["nothing"])
        await into_database(log, target, renames={"TestTopic": "testtopic"})
        await assert_same(log, Queue("TestTopic", 0), target, Queue("testtopic", Priority.MIDDLE))
        assert (await contents(target, RETRY))[-1].properties == {"RETRY_TOPIC": "testtopic"}


@pytest.mark.one_database
async def test_references_are_copied_as_full_messages(log: LogStore, database_store: SqlStore) -> None:
    await fill(log)
    found = await log.read(ORDERS, 17, count_max=1)
    assert isinstance(found, Slice)
    (raw,) = found.records()
    reference = make_reference(
        raw, "orders", decode_messages(found)[0].properties and properties.encode(decode_messages(found)[0].properties)
    )
    gone = Draft(body=b"", properties=reference.properties.replace(b"__REF\x01", b"__REF\x019"))
    await log.append(RETRY, [reference, gone])
    done = await into_database(log, database_store)
    _, resent, dangling = await contents(database_store, RETRY)
    assert resent.body == decode_messages(found)[0].body
    assert resent.properties["RETRY_TOPIC"] == "orders"
    assert resent.properties["RESENT"] == "true"
    assert resent.unique_key == "u-orders/0:17"
    assert "__REF" not in resent.properties
    assert await database_store.record_at(int(dangling.properties["__REF"])) is None
    assert any("1 references in retry topics were replaced by copies" in note for note in done.notes)


@pytest.mark.one_database
async def test_a_retry_of_an_idempotent_message_is_copied(log: LogStore, database_store: SqlStore) -> None:
    for topic in ("orders", "%RETRY%g"):
        await log.catalog.put_topic(Topic(name=topic, read_queues=1, write_queues=1))
        once = make_draft("once")
        once.properties += properties.encode({"__PID": "me", "__SEQ": "7"})
        await log.append(Queue(topic, 0), [once])
    assert (await into_database(log, database_store)).messages == 2
    assert len(await contents(database_store, RETRY)) == 1


@pytest.mark.one_database
async def test_missing_messages_are_skipped_and_reported(database_url: str, other_log: LogStore) -> None:
    async with await SqlStore.open(database_url, DATABASE) as store:
        await fill(store)
        await store.database.execute("DELETE FROM msg_high_orders WHERE id BETWEEN 11 AND 20")
    async with asyncio.timeout(30), await SqlStore.open(database_url, DATABASE) as store:
        done = await into_log(store, other_log, chosen=["orders"])
    assert "orders/0: 10 messages from offset 10 on are missing" in done.notes
    assert len(await contents(other_log, ORDERS)) == 1193


# -- the command line -------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["store", *words])
    said = " ".join((done.output + (str(done.exception) if done.exception else "")).split())
    return done.exit_code, said


@pytest.mark.one_database
async def test_the_command_line_copies_and_checks(database_url: str, tmp_path: Path) -> None:
    async with LogStore(tmp_path / "data" / "store", LOG) as log:
        await fill(log)
    code, text = await asyncio.to_thread(run, "copy", str(tmp_path / "data"), database_url, "--topic", "orders")
    assert code == 0, text
    assert "1,233 messages of 1 topics copied" in text
    code, text = await asyncio.to_thread(run, "check", database_url)
    assert (code, "is consistent" in text) == (0, True), text
    async with await SqlStore.open(database_url) as store:
        await store.database.execute("DELETE FROM msg_middle_orders WHERE id = 7")
        lane = store.catalog.lanes[MIDDLE_ORDERS].number
    code, text = await asyncio.to_thread(run, "check", database_url)
    assert code == 1
    assert "id 7 is missing" in text
    code, text = await asyncio.to_thread(
        run, "skip-ids", database_url, "--lane", str(lane), "--to", "2000", "--reason", "a test"
    )
    assert code == 0, text
    assert "796 ids stay unused" in text
    code, text = await asyncio.to_thread(run, "copy", database_url, str(tmp_path / "back"), "--rename", "orders=again")
    assert code == 0, text
    assert "orders/1: 796 messages from offset 1,203 on are missing" in text
    assert (tmp_path / "back" / "store" / "commitlog").is_dir()
    code, text = await asyncio.to_thread(run, "check", str(tmp_path / "back"))
    assert (code, "is checked whenever it is opened" in text) == (0, True), text


def test_the_command_line_refuses_a_path_without_a_store(tmp_path: Path) -> None:
    code, text = run("check", f"sqlite:///{tmp_path}/nothing.db")
    assert (code, "does not exist" in text) == (2, True), text
    assert not (tmp_path / "nothing.db").exists()
    code, text = run("copy", str(tmp_path), f"sqlite:///{tmp_path}/new.db")
    assert (code, "has no commitlog folder" in text) == (2, True), text
    code, text = run("copy", str(tmp_path), f"sqlite:///{tmp_path}/new.db", "--rename", "x")
    assert (code, "OLD=NEW" in text) == (2, True), text
