"""The topics of a broker: their configuration, cached in memory and kept in the store.

`on_change` is called after every change and registers the topics with the name servers; `version` increases with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from sparrow.model.errors import NotPermitted, Refused, UnknownTopic
from sparrow.model.protocol import (
    AUTO_CREATE_TOPIC,
    CHECK_LIMIT_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
)
from sparrow.model.topic import Topic, is_group_topic, is_legal_name, validate_topic_name
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Store
from sparrow.wire.bodies import DataVersion

BROKER_ONLY_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_LIMIT_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Topics that only the broker writes to."""


class TopicCatalog:
    """All topics of one broker."""

    def __init__(
        self, store: Store, settings: BrokerSettings, now_ms: Callable[[], int], *, stores_system_topics: bool = True
    ) -> None:
        """Create an empty catalog.

        `stores_system_topics`: whether the system topics are put into the store.
        """
        self._store, self._settings, self._now_ms = store, settings, now_ms
        self._keeps_system = stores_system_topics
        self._topics: dict[str, Topic] = {}
        self.version = DataVersion(0, now_ms())
        self.term: int | None = None
        """The leader's term, where brokers share a database. Name servers ignore versions of an earlier term."""
        self.on_change: Callable[[Topic | None], Awaitable[None]] = _no_listener
        """Awaited after every change, with the topic that is new or changed; None: it may be any. When it returns, the
        name servers have the change or were not reachable."""
        self.refused = 0
        """Topics that were not created because of the limit."""
        self.refused_queues = 0
        """Topics that were not created or changed because of the limit of queues."""
        self._creating = asyncio.Lock()
        self._system = {topic.name: topic for topic in _system_topics(settings)}

    async def load(self) -> None:
        """Load the topics from the store, and add missing system topics."""
        stored = await self._store.catalog.list_topics()
        for name, topic in self._system.items():
            # Replies are always stored, so their topic must exist in every store.
            if name not in stored and (self._keeps_system or name.endswith(REPLY_TOPIC_SUFFIX)):
                await self._store.catalog.put_topic(topic)
        self.replace_all(await self._store.catalog.list_topics())

    def replace_all(self, stored: Mapping[str, Topic]) -> bool:
        """Replace the cache by the content of the store. Return whether it changed."""
        known = {**self._system, **stored}
        if known == self._topics:
            return False
        self._topics = known
        self._bump_version()
        return True

    async def set_leader_term(self, term: int) -> None:
        """Announce the topics under the term of a new leader."""
        self.term = term
        self._bump_version()
        await self.on_change(None)

    async def announce(self) -> None:
        """Announce the topics to the name servers."""
        await self.on_change(None)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def __getitem__(self, name: str) -> Topic:
        """Return the topic, or raise `UnknownTopic`."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def is_system(self, name: str) -> bool:
        return name in self._system or name in BROKER_ONLY_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)

    @property
    def system_names(self) -> list[str]:
        return sorted({*self._system, *BROKER_ONLY_TOPICS})

    async def put(self, topic: Topic) -> None:
        """Create or change a topic."""
        validate_topic_name(topic.name)
        known = self._topics.get(topic.name)
        if known == topic:
            return
        if known is None:
            self._check_capacity(topic.name)
        await self._store.catalog.put_topic(topic)
        # The store may change the layout.
        stored = (await self._store.catalog.list_topics()).get(topic.name, topic)
        self._topics[topic.name] = stored
        self._bump_version()
        await self.on_change(stored)

    def _check_capacity(self, name: str) -> None:
        # Groups that are there already may still have their retry and dead-letter topics.
        limit = self._settings.topics_max * (2 if is_group_topic(name) else 1)
        if len(self._topics) >= limit:
            self.refused += 1
            raise Refused(
                f"topic {name!r} cannot be created: this broker has {len(self._topics)} topics, and the limit is"
                f" {limit}: delete topics that nobody uses, or raise broker.topics_max"
            )

    async def delete(self, name: str) -> None:
        """Delete a topic with its messages, queues and offsets. Deleting one that does not exist is no error."""
        if name in self._system:
            raise NotPermitted(f"deleting topic {name!r}", "it is a system topic")
        if name in self._topics:
            await self._store.catalog.delete_topic(name)
            self._topics.pop(name, None)  # a shared store may have reported the deletion in the meantime
            self._bump_version()
            await self.on_change(None)

    async def create_for_send(self, name: str, *, template: str, queues: int) -> Topic:
        """Create the topic of a first message from a template topic that has the inherit permission."""
        validate_topic_name(name)
        async with self._creating:  # concurrent first sends create it once
            if name not in self._topics:
                await self._create_like(name, template, queues)
        return self[name]

    async def _create_like(self, name: str, template: str, queues: int) -> None:
        pattern = self._topics.get(template)
        if pattern is None or not pattern.permission & PERM_INHERIT or not self._settings.auto_create_topics:
            raise UnknownTopic(name)
        count = max(1, min(queues, pattern.write_queues, self._settings.topic_queues_max))
        permission = pattern.permission & ~PERM_INHERIT
        await self.put(Topic(name=name, read_queues=count, write_queues=count, permission=permission))

    async def create_for_group(self, prefix: str, group: str, queues: int = 1) -> Topic:
        """Return the retry or dead-letter topic of a group. Create it if needed."""
        name = prefix + group
        if name not in self._topics:
            await self.put(Topic(name=name, read_queues=queues, write_queues=queues))
        return self[name]

    def _bump_version(self) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms(), self.term)


async def _no_listener(_: Topic | None) -> None:
    pass


def _system_topics(settings: BrokerSettings) -> Iterable[Topic]:
    """Return the topics that tools and clients expect in routes."""
    all_permissions = PERM_READ | PERM_WRITE | PERM_INHERIT

    def topic(name: str, queues: int, permission: int = PERM_READ | PERM_WRITE) -> Topic:
        return Topic(name=name, read_queues=queues, write_queues=queues, permission=permission)

    if settings.auto_create_topics:
        yield topic(AUTO_CREATE_TOPIC, settings.topic_queues, all_permissions)
    yield topic(settings.cluster, 16, all_permissions)  # mqadmin finds all brokers of a cluster by this topic
    if is_legal_name(settings.name):  # `room@name` is no topic name: no client could send to it
        yield topic(settings.name, 1, all_permissions)
    yield topic(SELF_TEST_TOPIC, 1)
    yield topic(OFFSET_MOVED_TOPIC, 1)
    yield topic(SCHEDULE_TOPIC, 18)
    yield topic(TIMER_TOPIC, 1)
    yield topic(HALF_TOPIC, 1)
    yield topic(OP_TOPIC, 1)
    yield topic(settings.cluster + REPLY_TOPIC_SUFFIX, 1)
    yield topic(f"rmq_sys_REVIVE_LOG_{settings.cluster}", 1, PERM_READ)
