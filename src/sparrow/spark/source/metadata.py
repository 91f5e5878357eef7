"""Metadata of topics for the driver: queues, their first and last offsets, and offsets of consumer groups.

There are two implementations with one interface: one queries brokers, one reads the files of a store.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Protocol

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.queue_bounds import SizedQueueBounds, fetch_queue_bounds
from sparrow.client.aio.consume.offset_store import BrokerOffsetStore
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, is_system_topic
from sparrow.spark.client_pool import CLIENT_POOL, PooledClient
from sparrow.spark.source.options import SourceOptions
from sparrow.store.log.readonly.store_directory import StoreDirectory
from sparrow.wire.bodies import QueueRef

FILES_BROKER_NAME = "files"
"""The broker name in offsets of a store that is read from files."""
QueueExtents = dict[QueueRef, SizedQueueBounds]


class SourceMetadata(Protocol):
    """Queries about topics, queues and groups."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        ...

    def extents(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        """Return the extent of each queue. Topics that do not exist have none.

        `is_fresh`: refresh the routes, so that new queues are found. `without_absent`: leave out brokers that are
        unavailable.
        """
        ...

    def has(self, topic: str) -> bool:
        """Return whether the topic existed at the last call of `extents`."""
        ...

    def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        """Return the first offset stored at or after this time."""
        ...

    def committed(self, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, int]:
        """Return the committed offsets of the group, for the queues that have one."""
        ...

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        """Commit offsets to the group, to show the progress of a query."""
        ...


def open_metadata(options: SourceOptions) -> SourceMetadata:
    """Return the metadata of brokers or of store files, as the options say."""
    if options.access == "files":
        assert options.path is not None, "SourceOptions.parse requires path with access=files"
        return StoreFilesMetadata(options.path)
    return BrokerMetadata(CLIENT_POOL.get(options.client))


def select_topics(options: SourceOptions, metadata: SourceMetadata) -> list[str]:
    """Return the topics that the options select. Names of `subscribe` and `assign` need not exist."""
    if options.subscribe is not None:
        return list(options.subscribe)
    if options.assign is not None:
        return list(options.assign)
    assert options.pattern is not None, "SourceOptions.parse requires one of subscribe, subscribePattern, assign"
    pattern = re.compile(options.pattern)
    return [name for name in metadata.topics() if pattern.fullmatch(name) and not is_system_topic(name)]


def fetch_extents(
    options: SourceOptions, metadata: SourceMetadata, *, is_fresh: bool, without_absent: bool = False
) -> QueueExtents:
    """Return the extents of the queues that the options select."""
    topics = select_topics(options, metadata)
    found = metadata.extents(topics, is_fresh=is_fresh, without_absent=without_absent)
    if options.topic_missing == "error" and options.pattern is None:
        for name in topics:
            if not metadata.has(name):
                raise UnknownTopic(name)
    if options.assign is None:
        return found
    return {queue: found[queue] for queue in _assigned(options.assign, found)}


def _assigned(assign: dict[str, dict[str, list[int]]], found: QueueExtents) -> list[QueueRef]:
    queues = [QueueRef(t, b, number) for t, brokers in assign.items() for b, ids in brokers.items() for number in ids]
    found_topics = {queue.topic for queue in found}
    for queue in queues:
        if queue not in found and queue.topic in found_topics:
            known = sorted({(each.broker_name, each.queue_id) for each in found if each.topic == queue.topic})
            raise Refused(
                f"topic {queue.topic!r} has no queue {queue.queue_id} on broker {queue.broker_name!r}. Its queues: "
                + ", ".join(f"{broker}/{number}" for broker, number in known[:16])
            )
    return sorted(queue for queue in queues if queue in found)


class BrokerMetadata:
    """Metadata from the name server and the brokers."""

    def __init__(self, client: PooledClient) -> None:
        self._client, self._admin = client, Admin(session=client.session)
        self._groups: set[str] = set()

    def topics(self) -> list[str]:
        return self._client.run(self._admin.topics())

    def has(self, topic: str) -> bool:
        return self._client.session.cached_route(topic) is not None

    def extents(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        return self._client.run(self._extents(list(topics), is_fresh, without_absent))

    async def _extents(self, topics: list[str], is_fresh: bool, without_absent: bool) -> QueueExtents:
        session = self._client.session
        found_topics = await asyncio.gather(*(self._exists(name, is_fresh) for name in topics))
        names = [name for name, exists in zip(topics, found_topics, strict=True) if exists]
        return await fetch_queue_bounds(session, names, without_absent=without_absent)

    async def _exists(self, topic: str, is_fresh: bool) -> bool:
        try:
            await self._client.session.route(topic, is_fresh=is_fresh)
        except UnknownTopic:
            return False
        return True

    def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        return self._client.run(self._admin.offset_at(queue, time_ms))

    def committed(self, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, int]:
        return self._client.run(self._committed(group, list(queues)))

    async def _committed(self, group: str, queues: list[QueueRef]) -> dict[QueueRef, int]:
        kept = BrokerOffsetStore(self._client.session, group)
        found = {queue: await kept.load(queue) for queue in queues}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        if group not in self._groups:
            self._client.run(self._create_group(group))
            self._groups.add(group)
        self._client.run(BrokerOffsetStore(self._client.session, group).save(offsets))

    async def _create_group(self, group: str) -> None:
        """Create the group and its retry topic.

        A broker creates both when a consumer joins the group. A query never joins, and `mqadmin consumerProgress` shows
        no progress for a group without a retry topic.
        """
        if group not in await self._admin.groups():
            await self._admin.create_group(Group(name=group))
        if not await self._exists(f"{RETRY_TOPIC_PREFIX}{group}", is_fresh=False):
            await self._admin.create_topic(f"{RETRY_TOPIC_PREFIX}{group}", queues=1)


class StoreFilesMetadata:
    """Metadata from a store directory of Sparrow or RocketMQ. No broker needs to run."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = StoreDirectory(path)

    def topics(self) -> list[str]:
        return self._directory.topics()

    def has(self, topic: str) -> bool:
        return bool(self._directory.bounds(topic))

    def extents(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        directory = self._directory = StoreDirectory(
            self._path
        )  # StoreDirectory is a snapshot of the moment it was opened
        return {
            QueueRef(topic, FILES_BROKER_NAME, number): SizedQueueBounds(
                bounds.first, bounds.end, directory.mean_bytes(Queue(topic, number))
            )
            for topic in sorted(topics)
            for number, bounds in sorted(directory.bounds(topic).items())
        }

    def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        return self._directory.offset_at(Queue(queue.topic, queue.queue_id), time_ms)

    def committed(self, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, int]:
        raise Refused(
            "access=files has no consumer groups: use offsets, earliest, latest or a timestamp in place of group:NAME"
        )

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        raise Refused("access=files cannot commit progress to a consumer group: remove the option 'groupId'")
