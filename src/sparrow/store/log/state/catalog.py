"""Topics and groups of a log store: the `Catalog` of the store interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.topic import Group, Topic, validate_group_name, validate_topic_name
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import (
    STATE_QUEUE,
    GroupUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    StateUpdate,
    TopicUpdate,
)


class LogCatalog:
    """Reads from the state tables; writes through the log."""

    def __init__(
        self,
        state: StateStore,
        wait_durable: Callable[[int], Awaitable[None]],
        drop_topic: Callable[[str, list[StateUpdate]], Awaitable[int]],
    ) -> None:
        """`drop_topic` appends the updates, deletes the queues of the topic and returns the end of the log."""
        self._state, self._wait_durable, self._drop_topic = state, wait_durable, drop_topic

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
        await self._wait_durable(await self._drop_topic(name, updates))

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
