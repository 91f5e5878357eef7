"""Topics and groups of a log store: the `Catalog` of the store interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.topic import Group, Topic, validate_group_name, validate_topic_name
from sparrow.store.log.maintenance import LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.state.updates import (
    STATE_QUEUE,
    GroupUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    StateUpdate,
    TopicUpdate,
)
from sparrow.store.log.threads import LogThreads


class LogCatalog:
    """Reads from the state tables; writes through the log."""

    def __init__(
        self,
        parts: LogParts,
        maintenance: LogMaintenance,
        threads: LogThreads,
        wait_durable: Callable[[int], Awaitable[None]],
    ) -> None:
        self._state, self._writer, self._queues = parts.state, parts.writer, parts.queues
        self._maintenance, self._threads, self._wait_durable = maintenance, threads, wait_durable

    async def list_topics(self) -> Mapping[str, Topic]:
        return dict(self._state.tables.topics)

    async def put_topic(self, topic: Topic) -> None:
        if validate_topic_name(topic.name) == STATE_QUEUE.topic:
            raise Refused(f"topic {topic.name!r} is the store's own")
        await self._wait_durable(self._state.append([TopicUpdate(topic.name, topic)]))

    async def delete_topic(self, name: str) -> None:
        tables = self._state.tables
        if name not in tables.topics:
            raise UnknownTopic(name)
        updates: list[StateUpdate] = [TopicUpdate(name, None)]
        updates += [OffsetsUpdate(topic, group, None) for topic, group in tables.offsets if topic == name]
        updates += [QueueEndsUpdate(topic, None) for topic in tables.ends if topic == name]
        await self._wait_durable(await self._threads.run(self._drop_topic, name, updates))

    def _drop_topic(self, name: str, updates: list[StateUpdate]) -> int:
        # No checkpoint in between: it would include queues that the log says are deleted.
        with self._threads.maintenance.paused():
            with self._writer.lock:
                end = self._state.append(updates)
                self._queues.drop_topic(name)
            self._maintenance.checkpoint()
        return end

    async def list_groups(self) -> Mapping[str, Group]:
        return dict(self._state.tables.groups)

    async def put_group(self, group: Group) -> None:
        validate_group_name(group.name)
        await self._wait_durable(self._state.append([GroupUpdate(group.name, group)]))

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        updates: list[StateUpdate] = [GroupUpdate(name, None)]
        if not keeps_offsets:
            updates += [
                OffsetsUpdate(topic, group, None) for topic, group in self._state.tables.offsets if group == name
            ]
        await self._wait_durable(self._state.append(updates))
