"""What the driver asks before anything is read: which queues there are, where they begin and end, who has read how far.

Two answer: brokers, and the files of a store. A plan is made of either in the same words.
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
"""The name of the broker in offsets of a store that is read without one."""
QueueExtents = dict[QueueRef, SizedQueueBounds]


class SourceMetadata(Protocol):
    def topics(self) -> list[str]:
        """Every topic there is."""
        ...

    def heads(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        """Where their queues begin and end; topics that are not there have none.

        `is_fresh`: look for new queues, too. `without_absent`: leave out brokers that are away.
        """
        ...

    def has(self, topic: str) -> bool:
        """Whether a topic was there when its heads were asked for."""
        ...

    def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        """The first offset stored at or after that time."""
        ...

    def committed(self, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, int]:
        """Where the group goes on, of queues that it has read."""
        ...

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        """Show how far a query is."""
        ...


def open_metadata(options: SourceOptions) -> SourceMetadata:
    if options.access == "files":
        assert options.path is not None, "the options say so"
        return StoreFilesMetadata(options.path)
    return BrokerMetadata(CLIENT_POOL.to(options.client))


def select_topics(options: SourceOptions, places: SourceMetadata) -> list[str]:
    """The topics that the options mean, whether they exist or not; of a pattern, those that do."""
    if options.subscribe is not None:
        return list(options.subscribe)
    if options.assign is not None:
        return list(options.assign)
    assert options.pattern is not None, "one of the three is there"
    pattern = re.compile(options.pattern)
    return [name for name in places.topics() if pattern.fullmatch(name) and not is_system_topic(name)]


def fetch_extents(
    options: SourceOptions, places: SourceMetadata, *, is_fresh: bool, without_absent: bool = False
) -> QueueExtents:
    """The queues that the options mean."""
    topics = select_topics(options, places)
    found = places.heads(topics, is_fresh=is_fresh, without_absent=without_absent)
    if options.missing == "error" and options.pattern is None:
        for name in topics:
            if not places.has(name):
                raise UnknownTopic(name)
    if options.assign is None:
        return found
    return {queue: found[queue] for queue in _assigned(options.assign, found)}


def _assigned(assign: dict[str, dict[str, list[int]]], found: QueueExtents) -> list[QueueRef]:
    queues = [QueueRef(t, b, number) for t, brokers in assign.items() for b, ids in brokers.items() for number in ids]
    there = {queue.topic for queue in found}
    for queue in queues:
        if queue not in found and queue.topic in there:
            known = sorted({(each.broker_name, each.queue_id) for each in found if each.topic == queue.topic})
            raise Refused(
                f"topic {queue.topic!r} has no queue {queue.queue_id} on broker {queue.broker_name!r}; it has "
                + ", ".join(f"{broker}/{number}" for broker, number in known[:16])
            )
    return sorted(queue for queue in queues if queue in found)


class BrokerMetadata:
    """Asked over the wire."""

    def __init__(self, link: PooledClient) -> None:
        self._link, self._admin = link, Admin(session=link.session)
        self._groups: set[str] = set()

    def topics(self) -> list[str]:
        return self._link.run(self._admin.topics())

    def has(self, topic: str) -> bool:
        return self._link.session.cached_route(topic) is not None

    def heads(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        return self._link.run(self._heads(list(topics), is_fresh, without_absent))

    async def _heads(self, topics: list[str], is_fresh: bool, without_absent: bool) -> QueueExtents:
        session = self._link.session
        there = await asyncio.gather(*(self._is_there(name, is_fresh) for name in topics))
        names = [name for name, is_there in zip(topics, there, strict=True) if is_there]
        return await fetch_queue_bounds(session, names, without_absent=without_absent)

    async def _is_there(self, topic: str, is_fresh: bool) -> bool:
        try:
            await self._link.session.route(topic, is_fresh=is_fresh)
        except UnknownTopic:
            return False
        return True

    def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        return self._link.run(self._admin.offset_at(queue, time_ms))

    def committed(self, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, int]:
        return self._link.run(self._committed(group, list(queues)))

    async def _committed(self, group: str, queues: list[QueueRef]) -> dict[QueueRef, int]:
        kept = BrokerOffsetStore(self._link.session, group)
        found = {queue: await kept.load(queue) for queue in queues}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        if group not in self._groups:
            self._link.run(self._make_group(group))
            self._groups.add(group)
        self._link.run(BrokerOffsetStore(self._link.session, group).save(offsets))

    async def _make_group(self, group: str) -> None:
        """Brokers make a group, and its retry topic, when a consumer joins it. A query never does, and `mqadmin` shows
        no progress of a group without that topic."""
        if group not in await self._admin.groups():
            await self._admin.put_group(Group(name=group))
        if not await self._is_there(f"{RETRY_TOPIC_PREFIX}{group}", is_fresh=False):
            await self._admin.create_topic(f"{RETRY_TOPIC_PREFIX}{group}", queues=1)


class StoreFilesMetadata:
    """Read from a store's directory, Sparrow's or RocketMQ's. No broker need run."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = StoreDirectory(path)

    def topics(self) -> list[str]:
        return self._directory.topics()

    def has(self, topic: str) -> bool:
        return bool(self._directory.bounds(topic))

    def heads(self, topics: Iterable[str], *, is_fresh: bool, without_absent: bool) -> QueueExtents:
        directory = self._directory = StoreDirectory(self._path)  # a directory is as of when it was opened
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
        raise Refused("access=files asks no broker, so it knows no groups: name offsets or a time instead")

    def commit(self, group: str, offsets: dict[QueueRef, int]) -> None:
        raise Refused("access=files asks no broker, so it cannot show progress: leave the option 'groupId' out")
