"""The topics of a broker: what is configured, kept in the store and at hand without waiting.

A change is told to `on_change`, which registers it with the name servers; `version` tells two states apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from sparrow.model.errors import NotPermitted, UnknownTopic
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
from sparrow.model.topic import Topic, validate_topic_name
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Store
from sparrow.wire.bodies import DataVersion

BROKER_ONLY_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_LIMIT_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Topics that only the broker itself writes to."""


class TopicCatalog:
    """All topics of one broker."""

    def __init__(
        self, store: Store, settings: BrokerSettings, now_ms: Callable[[], int], *, stores_system_topics: bool = True
    ) -> None:
        """`stores_system_topics`: whether the store is to hold the broker's own topics, too."""
        self._store, self._settings, self._now_ms = store, settings, now_ms
        self._keeps_system = stores_system_topics
        self._topics: dict[str, Topic] = {}
        self.version = DataVersion(0, now_ms())
        self.term: int | None = None
        """Where brokers take turns in leading: the how-manieth. Name servers heed none of an earlier one."""
        self.on_change: Callable[[], Awaitable[None]] = _no_listener
        """Awaited after every change, so that whoever made it can count on the name servers knowing."""
        self._creating = asyncio.Lock()
        self._system = {topic.name: topic for topic in _system_topics(settings)}

    async def load(self) -> None:
        """Take over what the store has. System topics that are missing are added."""
        kept = await self._store.catalog.list_topics()
        for name, topic in self._system.items():
            # Replies are stored, if only for a while, whatever else is kept elsewhere.
            if name not in kept and (self._keeps_system or name.endswith(REPLY_TOPIC_SUFFIX)):
                await self._store.catalog.put_topic(topic)
        self.replace_all(await self._store.catalog.list_topics())

    def replace_all(self, kept: Mapping[str, Topic]) -> bool:
        """What the store has; whether that is something else than before."""
        known = {**self._system, **kept}
        if known == self._topics:
            return False
        self._topics = known
        self._bump_version()
        return True

    async def set_leader_term(self, term: int) -> None:
        """Who leads has changed."""
        self.term = term
        self._bump_version()
        await self.on_change()

    async def announce(self) -> None:
        """Whoever listens has heard of the topics as they are."""
        await self.on_change()

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def __getitem__(self, name: str) -> Topic:
        """The topic, or `UnknownTopic`."""
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
        if self._topics.get(topic.name) == topic:
            return
        await self._store.catalog.put_topic(topic)
        # A store may lay it out in its own way.
        self._topics[topic.name] = (await self._store.catalog.list_topics()).get(topic.name, topic)
        self._bump_version()
        await self.on_change()

    async def delete(self, name: str) -> None:
        """Its messages, queues and offsets go with it. To delete what is not there is no error: tools repeat it."""
        if name in self._system:
            raise NotPermitted(f"deleting topic {name!r}", "the broker needs it")
        if name in self._topics:
            await self._store.catalog.delete_topic(name)
            self._topics.pop(name, None)  # a store that tells of changes may have said so meanwhile
            self._bump_version()
            await self.on_change()

    async def create_for_send(self, name: str, *, template: str, queues: int) -> Topic:
        """The topic a first message is sent to, made after a template topic that may be inherited from."""
        validate_topic_name(name)
        async with self._creating:  # of two first sends, one makes it
            if name not in self._topics:
                await self._create_like(name, template, queues)
        return self[name]

    async def _create_like(self, name: str, template: str, queues: int) -> None:
        pattern = self._topics.get(template)
        if pattern is None or not pattern.permission & PERM_INHERIT or not self._settings.auto_create_topics:
            raise UnknownTopic(name)
        count = max(1, min(queues, pattern.write_queues))
        permission = pattern.permission & ~PERM_INHERIT
        await self.put(Topic(name=name, read_queues=count, write_queues=count, permission=permission))

    async def create_for_group(self, prefix: str, group: str, queues: int = 1) -> Topic:
        """The retry or dead-letter topic of a group."""
        name = prefix + group
        if name not in self._topics:
            await self.put(Topic(name=name, read_queues=queues, write_queues=queues))
        return self[name]

    def _bump_version(self) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms(), self.term)


async def _no_listener() -> None:
    pass


def _system_topics(settings: BrokerSettings) -> Iterable[Topic]:
    """Topics that tools and clients expect to find in routes."""
    all_permissions = PERM_READ | PERM_WRITE | PERM_INHERIT

    def topic(name: str, queues: int, permission: int = PERM_READ | PERM_WRITE) -> Topic:
        return Topic(name=name, read_queues=queues, write_queues=queues, permission=permission)

    if settings.auto_create_topics:
        yield topic(AUTO_CREATE_TOPIC, settings.topic_queues, all_permissions)
    yield topic(settings.cluster, 16, all_permissions)  # mqadmin finds all brokers of a cluster by this topic
    yield topic(settings.name, 1, all_permissions)
    yield topic(SELF_TEST_TOPIC, 1)
    yield topic(OFFSET_MOVED_TOPIC, 1)
    yield topic(SCHEDULE_TOPIC, 18)
    yield topic(TIMER_TOPIC, 1)
    yield topic(HALF_TOPIC, 1)
    yield topic(OP_TOPIC, 1)
    yield topic(settings.cluster + REPLY_TOPIC_SUFFIX, 1)
    yield topic(f"rmq_sys_REVIVE_LOG_{settings.cluster}", 1, PERM_READ)
