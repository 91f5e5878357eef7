"""Topics, groups and lanes: what there is in the database.

Databases do not roll DDL back, so a topic has a state: `creating` until all its tables are there, `deleting` until they
are gone. Whoever finds one half-way finishes it. Only what is `active` is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sparrow.model.errors import StorageError, UnknownTopic
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic, validate_group_name
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused
from sparrow.store.sql.drivers.url import Dialect as DatabaseKind
from sparrow.store.sql.lanes import Lane, LaneKind, physical_offset_of
from sparrow.store.sql.schema import ddl, partitions
from sparrow.store.sql.schema.table_names import is_internal_topic, table_suffix

_ANONYMOUS = " anonymous"
"""No token of a user's starts with a blank."""
_MAKING = 0x5BA77083
"""The lock of whoever makes tables: any number that other programs on the server are unlikely to use."""


async def _nothing(_name: str = "") -> None:
    pass


@dataclass(frozen=True)
class CatalogHooks:
    """What a store does when its catalog changes."""

    lanes_changed: Callable[[], None] = lambda: None
    before_topic_delete: Callable[[str], Awaitable[None]] = _nothing
    forget_offsets: Callable[[str], Awaitable[None]] = _nothing
    """Delete the committed offsets of a group."""


class StoreCatalog:
    """What is known of a database's topics; `refresh` asks again."""

    def __init__(
        self,
        database: StoreDatabase,
        *,
        partition_rows: int,
        now_ms: Callable[[], int],
        hooks: CatalogHooks | None = None,
    ) -> None:
        self._database, self._partition_rows, self._now_ms = database, partition_rows, now_ms
        self._hooks = hooks or CatalogHooks()
        self.reload: Callable[[], Awaitable[None]] = self.refresh
        """Refresh the catalog and everything in the store that depends on it."""
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.lanes: dict[tuple[str, int], Lane] = {}
        """Of messages: by topic and queue id."""
        self.lanes_by_number: dict[int, tuple[Lane, Queue]] = {}
        self.resend_lanes: dict[tuple[str, int], Lane] = {}
        self.anonymous_token = 0
        """The token of messages that came without one."""
        self._changing = asyncio.Lock()
        """One at a time: what was read earlier must not be taken over later."""

    async def prepare(self) -> None:
        """Make or migrate the shared tables, and finish what somebody left half-way."""
        database = self._database
        version = await self._version()
        if version is None:
            await self._make(ddl.shared_tables(database.dialect))
            await insert_if_absent(database, "hermes_schema", version=ddl.SCHEMA_VERSION, at=self._now_ms())
        elif version > ddl.SCHEMA_VERSION:
            raise _too_new(database.display_url, version)
        else:
            await self._add_later_tables()
        self.anonymous_token = await self._ensure_anonymous_token()
        for topic, state, options in await database.fetch(
            "SELECT topic, state, options FROM hermes_topic WHERE state <> 'active'"
        ):
            if state == "creating":
                await self._build(topic, _topic_in(options), is_new=True)
            else:
                await self._tear_down(topic)
        await self.refresh()

    async def _version(self) -> int | None:
        """Of the tables that are there; None as long as not all of them are."""
        try:
            found = await self._database.fetch("SELECT MAX(version) FROM hermes_schema")
        except DatabaseRefused:  # not even this one
            return None
        return found[0][0]  # type: ignore[no-any-return]

    async def _add_later_tables(self) -> None:
        for name, statement in ddl.later_tables(self._database.dialect).items():
            try:
                await self._database.fetch(f"SELECT 1 FROM {name} WHERE 1 = 0")
            except DatabaseRefused:  # it is not there
                await self._make([statement])

    async def _ensure_anonymous_token(self) -> int:
        while True:
            found = await self._database.fetch("SELECT id FROM meta_token WHERE token = :token", token=_ANONYMOUS)
            if found:
                return int(found[0][0])
            # Only if it is missing: a try that comes to nothing uses up a number all the same.
            await insert_if_absent(self._database, "meta_token", token=_ANONYMOUS, type="p", created_at=self._now_ms())

    async def refresh(self) -> None:
        """Take over what other brokers have created, changed and deleted."""
        async with self._changing:
            await self._refresh()

    async def _refresh(self) -> None:
        database = self._database
        # In this order: a topic that is active has had its lanes for a while.
        topics = await database.fetch("SELECT topic, options FROM hermes_topic WHERE state = 'active'")
        lanes = await database.fetch("SELECT lane, topic, part, kind, priority FROM hermes_lane")
        groups = await database.fetch("SELECT options FROM hermes_group")
        self.topics = {topic.name: topic for topic in (_topic_in(options) for _, options in topics)}
        self.groups = {group.name: group for group in (_group_in(options) for (options,) in groups)}
        names = {table_suffix(name): name for name in self.topics}
        messages: dict[tuple[str, int], Lane] = {}
        resends: dict[tuple[str, int], Lane] = {}
        by_number: dict[int, tuple[Lane, Queue]] = {}
        for number, spelled, part, kind, word in lanes:
            name = names.get(spelled)
            if name is None:
                continue
            lane = Lane(number, spelled, part, _kind(kind), Priority[word.upper()])
            queue_id = read_queue_id(part, lane.priority) if has_lanes(self.topics[name]) else part
            (messages if kind == "m" else resends)[name, queue_id] = lane
            if kind == "m":
                by_number[number] = lane, Queue(name, queue_id)
        self.lanes, self.resend_lanes, self.lanes_by_number = messages, resends, by_number

    def lane(self, queue: Queue) -> Lane:
        """The lane of a queue, or `UnknownTopic`."""
        found = self.lanes.get(queue)
        if found is None:
            raise UnknownTopic(queue.topic)
        return found

    async def list_topics(self) -> Mapping[str, Topic]:
        await self.reload()
        return dict(self.topics)

    async def list_groups(self) -> Mapping[str, Group]:
        return dict(self.groups)

    # -- changes ------------------------------------------------------------------------------------------------------

    async def put_topic(self, topic: Topic) -> None:
        """Create it, or change what is configured; parts are only ever added.

        A topic of a user always has three priorities here.
        """
        spelled = table_suffix(topic.name)
        topic = _with_lanes(topic)
        before = self.topics.get(topic.name)
        if before is not None and topic.write_queues < before.write_queues:
            topic = msgspec.structs.replace(topic, write_queues=before.write_queues, read_queues=before.read_queues)
        await insert_if_absent(
            self._database,
            "hermes_topic",
            topic=spelled,
            parts=topic.write_queues,
            state="creating",
            options=msgspec.json.encode(topic).decode(),
            created_at=self._now_ms(),
        )
        await self._build(spelled, topic, is_new=before is None or before.write_queues != topic.write_queues)
        await self.refresh()
        self._hooks.lanes_changed()

    async def _build(self, spelled: str, topic: Topic, *, is_new: bool) -> None:
        database = self._database
        if is_new:
            for part in range(topic.write_queues):
                tables = ddl.topic_tables(
                    database.dialect,
                    spelled,
                    part,
                    has_lanes=has_lanes(topic),
                    partition_rows=self._partition_rows,
                )
                await self._make(tables)
                for kind, priorities in _lanes_of(topic):
                    for priority in priorities:
                        await insert_if_absent(
                            database, "hermes_lane", topic=spelled, part=part, kind=kind, priority=priority.label
                        )
        await database.execute(
            "UPDATE hermes_topic SET state = 'active', parts = :parts, options = :options WHERE topic = :topic",
            parts=topic.write_queues,
            options=msgspec.json.encode(topic).decode(),
            topic=spelled,
        )

    async def _make(self, statements: Iterable[str]) -> None:
        """Tables and indexes that are not there yet; other brokers may be at the same."""
        database = self._database
        if database.dialect == "postgresql":
            # There, two that make one table at the same time get in each other's way, IF NOT EXISTS or not.
            async with database.transaction() as session:
                await session.fetch(f"SELECT pg_advisory_xact_lock({_MAKING})")
                for statement in statements:
                    await session.execute(statement)
            return
        for statement in statements:
            try:
                await database.execute(statement)
            except DatabaseRefused as refused:
                if "1061" not in str(refused):  # the index is there already
                    raise

    async def delete_topic(self, name: str) -> None:
        if name not in self.topics:
            raise UnknownTopic(name)
        await self._hooks.before_topic_delete(name)
        spelled = table_suffix(name)
        await self._database.execute("UPDATE hermes_topic SET state = 'deleting' WHERE topic = :topic", topic=spelled)
        await self._tear_down(spelled)
        await self.refresh()
        self._hooks.lanes_changed()

    async def _tear_down(self, spelled: str) -> None:
        database = self._database
        found = await database.fetch("SELECT options FROM hermes_topic WHERE topic = :topic", topic=spelled)
        if not found:  # another broker was quicker
            return
        topic = _topic_in(found[0][0])
        for part in range(topic.write_queues):
            for name in ddl.topic_table_names(spelled, part, has_lanes=has_lanes(topic)):
                await database.execute(f'DROP TABLE IF EXISTS "{name}"')
        for (number,) in await database.fetch("SELECT lane FROM hermes_lane WHERE topic = :topic", topic=spelled):
            # Also what producers sent there: a message of theirs that comes again is a new one.
            await database.execute(
                "DELETE FROM hermes_batch WHERE lane = :lane OR (lane = 0 AND base_id >= :first AND base_id < :end)",
                lane=number,
                first=physical_offset_of(number, 0),
                end=physical_offset_of(number + 1, 0),
            )
        await database.execute("DELETE FROM hermes_lane WHERE topic = :topic", topic=spelled)
        await database.execute("DELETE FROM hermes_topic WHERE topic = :topic", topic=spelled)

    async def put_group(self, group: Group) -> None:
        validate_group_name(group.name)
        options = msgspec.json.encode(group).decode()
        async with self._changing:
            await upsert(self._database, "hermes_group", key="name", name=group.name, options=options)
            self.groups[group.name] = group

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        async with self._changing:
            await self._database.execute("DELETE FROM hermes_group WHERE name = :name", name=name)
            self.groups.pop(name, None)
        if not keeps_offsets:
            await self._hooks.forget_offsets(name)

    async def ensure_partitions(self, lane: Lane, count: int) -> None:
        """Take care that the next `count` messages of a lane find their partition."""
        found = await self._database.fetch("SELECT next_id FROM hermes_lane WHERE lane = :lane", lane=lane.number)
        await partitions.add_partitions(self._database, lane.table, found[0][0] + count, self._partition_rows)


async def insert_if_absent(database: StoreDatabase, into: str, **values: object) -> bool:
    """Insert a row unless its key is there; whether it was inserted."""
    return await database.execute(insert_if_absent_sql(database.dialect, into, values), **values) > 0


def insert_if_absent_sql(kind: DatabaseKind, into: str, names: Iterable[str]) -> str:
    """An INSERT that does nothing if the key is there."""
    start, end = ("INSERT IGNORE INTO", "") if kind == "mysql" else ("INSERT INTO", "ON CONFLICT DO NOTHING")
    columns, places = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    return f'{start} "{into}" ({columns}) VALUES ({places}) {end}'


async def upsert(database: StoreDatabase, into: str, *, key: str, **values: object) -> None:
    """Insert a row, or give the row with its key these values."""
    change = ", ".join(f'"{name}" = :{name}' for name in values if name != key)
    await database.execute(upsert_text(database.dialect, into, values, key=key, change=change), **values)


def upsert_text(kind: DatabaseKind, into: str, names: Iterable[str], *, key: str, change: str) -> str:
    """An INSERT that makes a change to the row instead if its key is there.

    One statement, and so no race: of an UPDATE that finds no row and an INSERT behind it, two may run side by side, and
    the second INSERT fails. `change` names the table where it reads a column: `n = t.n + 1`.
    """
    columns, places = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    there = "ON DUPLICATE KEY UPDATE" if kind == "mysql" else f'ON CONFLICT ("{key}") DO UPDATE SET'
    return f'INSERT INTO "{into}" ({columns}) VALUES ({places}) {there} {change}'


def has_lanes(topic: Topic) -> bool:
    return bool(topic.sys_flag & LANES_SYS_FLAG)


def _with_lanes(topic: Topic) -> Topic:
    """Every topic of a user's has three priorities here; the platform's own need none."""
    if is_internal_topic(topic.name):
        return msgspec.structs.replace(topic, read_queues=topic.write_queues, sys_flag=topic.sys_flag & ~LANES_SYS_FLAG)
    return msgspec.structs.replace(
        topic, read_queues=topic.write_queues * LANE_COUNT, sys_flag=topic.sys_flag | LANES_SYS_FLAG
    )


def _lanes_of(topic: Topic) -> Iterable[tuple[LaneKind, tuple[Priority, ...]]]:
    if has_lanes(topic):
        return (("m", tuple(Priority)), ("r", tuple(Priority)))
    return (("m", (Priority.MIDDLE,)),)


def _kind(word: str) -> LaneKind:
    return "m" if word == "m" else "r"


def _topic_in(options: str) -> Topic:
    return msgspec.json.decode(options, type=Topic)


def _group_in(options: str) -> Group:
    return msgspec.json.decode(options, type=Group)


def _too_new(where: str, version: int) -> StorageError:
    return StorageError(
        f"the database {where} has tables of version {version}, this Sparrow knows {ddl.SCHEMA_VERSION}: use a newer "
        "one"
    )
