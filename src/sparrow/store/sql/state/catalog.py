"""The catalog of a database: topics, groups and lanes.

Databases do not roll DDL back, so a topic has a state: `creating` until all its tables exist, `deleting` until all are
dropped. A broker that finds an unfinished topic finishes it. Only `active` topics are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic, validate_group_name
from sparrow.settings import TopicNames
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane, LaneKind, lane_of_row, physical_offset_of
from sparrow.store.sql.schema import ddl, partitions
from sparrow.store.sql.schema.migrations.runner import prepare_schema, schema_lock
from sparrow.store.sql.schema.table_names import is_internal_topic, table_suffix, validate_new_topic
from sparrow.store.sql.statements import batches as batch_statements
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import partitions as partition_statements
from sparrow.store.sql.statements.state import catalog as statements
from sparrow.store.sql.statements.state import tokens as token_statements
from sparrow.store.sql.upserts import insert_if_absent, upsert


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
    """The topics, groups and lanes of a database, with a copy in memory that `refresh` reads again."""

    def __init__(
        self,
        database: StoreDatabase,
        *,
        partition_rows: int,
        topic_names: TopicNames = "lower",
        now_ms: Callable[[], int],
        hooks: CatalogHooks | None = None,
    ) -> None:
        self._database, self._partition_rows, self._now_ms = database, partition_rows, now_ms
        self._topic_names = topic_names
        self._hooks = hooks or CatalogHooks()
        self.reload: Callable[[], Awaitable[None]] = self.refresh
        """Refresh the catalog and everything in the store that depends on it."""
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.lanes: dict[tuple[str, int], Lane] = {}
        """The lanes of messages, by topic and queue id."""
        self.lanes_by_number: dict[int, tuple[Lane, Queue]] = {}
        """The same lanes with their queues, by the number of the lane."""
        self.resend_lanes: dict[tuple[str, int], Lane] = {}
        """The lanes of resend ranges, by topic and queue id."""
        self.anonymous_token = 0
        """The number that messages without a token have in column `token`."""
        self._lock = asyncio.Lock()
        """Serialises refreshes and changes: an older read must not replace a newer one."""

    async def prepare(self) -> None:
        """Create or migrate the shared tables, finish unfinished topics, and read the catalog."""
        database = self._database
        await prepare_schema(database, self._now_ms())
        self.anonymous_token = await self._ensure_anonymous_token()
        for suffix, state, options in await database.fetch(statements.SELECT_UNFINISHED_TOPICS):
            if state == "creating":
                await self._create_tables(suffix, _decode_topic(options), is_new=True)
            else:
                await self._drop_tables(suffix)
        await self.refresh()

    async def _ensure_anonymous_token(self) -> int:
        while True:
            found = await self._database.fetch(token_statements.SELECT_ID, token=token_statements.ANONYMOUS_TOKEN)
            if found:
                return int(found[0][0])
            # Only if the row is missing: an INSERT that does nothing uses up a number, too.
            await insert_if_absent(
                self._database,
                "meta_token",
                token=token_statements.ANONYMOUS_TOKEN,
                type="p",
                created_at=self._now_ms(),
            )

    async def refresh(self) -> None:
        """Read what other brokers have created, changed and deleted."""
        async with self._lock:
            await self._refresh()

    async def _refresh(self) -> None:
        database = self._database
        # Topics first: a topic that is active got its lanes before.
        topics = await database.fetch(statements.SELECT_ACTIVE_TOPICS)
        lanes = await database.fetch(lane_statements.SELECT_ALL)
        groups = await database.fetch(statements.SELECT_GROUPS)
        decoded = {suffix: _decode_topic(options) for suffix, options in topics}
        self.topics = {topic.name: topic for topic in decoded.values()}
        self.groups = {group.name: group for group in (_decode_group(options) for (options,) in groups)}
        messages: dict[tuple[str, int], Lane] = {}
        resends: dict[tuple[str, int], Lane] = {}
        by_number: dict[int, tuple[Lane, Queue]] = {}
        for row in lanes:
            lane = lane_of_row(*row)
            topic = decoded.get(lane.topic)
            if topic is None:
                continue
            queue_id = read_queue_id(lane.part, lane.priority) if has_lanes(topic) else lane.part
            (messages if lane.kind == "m" else resends)[topic.name, queue_id] = lane
            if lane.kind == "m":
                by_number[lane.number] = lane, Queue(topic.name, queue_id)
        self.lanes, self.resend_lanes, self.lanes_by_number = messages, resends, by_number

    def lane(self, queue: Queue) -> Lane:
        """Return the lane of a queue, or raise `UnknownTopic`."""
        found = self.lanes.get(queue)
        if found is None:
            raise UnknownTopic(queue.topic)
        return found

    async def list_topics(self) -> Mapping[str, Topic]:
        await self.reload()
        return dict(self.topics)

    async def list_groups(self) -> Mapping[str, Group]:
        return dict(self.groups)

    # -- changes -------------------------------------------------------------------------------------------------------

    async def put_topic(self, topic: Topic) -> None:
        """Create a topic or change its configuration. Parts are only ever added.

        A topic of a user always has three priorities here. Which names new topics may have is a setting; topics that
        exist may be used and changed whatever their names are.
        """
        before = self.topics.get(topic.name)
        if before is None:
            validate_new_topic(topic.name, self._topic_names)
        suffix = table_suffix(topic.name)
        topic = _with_lanes(topic)
        if before is not None and topic.write_queues < before.write_queues:
            topic = msgspec.structs.replace(topic, write_queues=before.write_queues, read_queues=before.read_queues)
        await insert_if_absent(
            self._database,
            "hermes_topic",
            topic=suffix,
            name=topic.name,
            parts=topic.write_queues,
            state="creating",
            options=msgspec.json.encode(topic).decode(),
            created_at=self._now_ms(),
        )
        if before is None:
            await self._check_digest(suffix, topic.name)
        await self._create_tables(suffix, topic, is_new=before is None or before.write_queues != topic.write_queues)
        await self.refresh()
        self._hooks.lanes_changed()

    async def _check_digest(self, suffix: str, name: str) -> None:
        """Refuse a topic whose tables would be those of another one."""
        for (options,) in await self._database.fetch(statements.SELECT_TOPIC, topic=suffix):
            owner = _decode_topic(options).name
            if owner != name:
                raise Refused(f"topic {name!r} would have the tables of topic {owner!r} ({suffix}): use another name")

    async def _create_tables(self, suffix: str, topic: Topic, *, is_new: bool) -> None:
        database = self._database
        if is_new:
            for part in range(topic.write_queues):
                await self._execute_ddl(
                    ddl.topic_tables(
                        database.dialect,
                        suffix,
                        part,
                        has_lanes=has_lanes(topic),
                        partition_rows=self._partition_rows,
                    )
                )
                for kind, priorities in _lanes_of(topic):
                    for priority in priorities:
                        await insert_if_absent(
                            database, "hermes_lane", topic=suffix, part=part, kind=kind, priority=priority.label
                        )
        await database.execute(
            statements.ACTIVATE_TOPIC,
            name=topic.name,
            parts=topic.write_queues,
            options=msgspec.json.encode(topic).decode(),
            topic=suffix,
        )

    async def _execute_ddl(self, ddl_statements: Iterable[str]) -> None:
        """Create tables and indexes that do not exist; other brokers may be creating the same."""
        database = self._database
        if database.dialect == "postgresql":
            # IF NOT EXISTS does not help there when two connections create one table at the same time.
            async with schema_lock(database) as session:
                for statement in ddl_statements:
                    await session.execute(statement)
            return
        for statement in ddl_statements:
            await database.execute(statement)

    async def delete_topic(self, name: str) -> None:
        if name not in self.topics:
            raise UnknownTopic(name)
        await self._hooks.before_topic_delete(name)
        suffix = table_suffix(name)
        await self._database.execute(statements.MARK_TOPIC_DELETING, topic=suffix)
        await self._drop_tables(suffix)
        await self.refresh()
        self._hooks.lanes_changed()

    async def _drop_tables(self, suffix: str) -> None:
        database = self._database
        found = await database.fetch(statements.SELECT_TOPIC, topic=suffix)
        if not found:  # another broker has finished it
            return
        topic = _decode_topic(found[0][0])
        for part in range(topic.write_queues):
            for name in ddl.topic_table_names(suffix, part, has_lanes=has_lanes(topic)):
                await database.execute(partition_statements.drop_table(name))
        for (number,) in await database.fetch(lane_statements.SELECT_NUMBERS_OF_TOPIC, topic=suffix):
            # With the batches of idempotent producers: a message that they repeat is a new one.
            await database.execute(
                batch_statements.DELETE_OF_LANE,
                lane=number,
                first=physical_offset_of(number, 0),
                end=physical_offset_of(number + 1, 0),
            )
        await database.execute(lane_statements.DELETE_OF_TOPIC, topic=suffix)
        await database.execute(statements.DELETE_TOPIC, topic=suffix)

    async def put_group(self, group: Group) -> None:
        validate_group_name(group.name)
        options = msgspec.json.encode(group).decode()
        async with self._lock:
            await upsert(self._database, "hermes_group", key="name", name=group.name, options=options)
            self.groups[group.name] = group

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        async with self._lock:
            await self._database.execute(statements.DELETE_GROUP, name=name)
            self.groups.pop(name, None)
        if not keeps_offsets:
            await self._hooks.forget_offsets(name)

    async def ensure_partitions(self, lane: Lane, count: int) -> None:
        """Add the partitions that the next `count` messages of a lane need."""
        ((next_id,),) = await self._database.fetch(lane_statements.SELECT_NEXT_ID, lane=lane.number)
        await partitions.add_partitions(self._database, lane.table, next_id + count, self._partition_rows)


def has_lanes(topic: Topic) -> bool:
    """Return whether the topic has a lane for each priority."""
    return bool(topic.sys_flag & LANES_SYS_FLAG)


def _with_lanes(topic: Topic) -> Topic:
    """Give a topic of a user three priorities; internal topics need none."""
    if is_internal_topic(topic.name):
        return msgspec.structs.replace(topic, read_queues=topic.write_queues, sys_flag=topic.sys_flag & ~LANES_SYS_FLAG)
    return msgspec.structs.replace(
        topic, read_queues=topic.write_queues * LANE_COUNT, sys_flag=topic.sys_flag | LANES_SYS_FLAG
    )


def _lanes_of(topic: Topic) -> Iterable[tuple[LaneKind, tuple[Priority, ...]]]:
    if has_lanes(topic):
        return (("m", tuple(Priority)), ("r", tuple(Priority)))
    return (("m", (Priority.MIDDLE,)),)


def _decode_topic(options: str) -> Topic:
    return msgspec.json.decode(options, type=Topic)


def _decode_group(options: str) -> Group:
    return msgspec.json.decode(options, type=Group)
