"""The plan of a copy: which topics are copied, under which names, and into which queues.

Everything that can be refused is refused here, before the first message is copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from sparrow.model.errors import IllegalName, Refused, UnknownTopic
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.protocol import PERM_INHERIT
from sparrow.model.queue import Queue
from sparrow.model.topic import ROCKETMQ_TOPICS, Topic, is_system_topic
from sparrow.store.spi import Store


class TopicCopy(NamedTuple):
    """A topic, and its name in the target."""

    topic: Topic
    target_name: str

    @property
    def queues(self) -> list[Queue]:
        count = max(self.topic.read_queues, self.topic.write_queues)
        return [Queue(self.topic.name, number) for number in range(count)]


class CopyPlan(NamedTuple):
    topics: list[TopicCopy]
    skipped: list[str]
    """System topics, which are not copied: every broker has its own."""


async def plan_copy(
    source: Store, *, chosen: Collection[str], renames: Mapping[str, str], check_name: Callable[[str], object]
) -> CopyPlan:
    """Plan the topics to be copied, all if none are chosen. `check_name` raises `IllegalName` for an illegal name."""
    known = await source.catalog.list_topics()
    for name in (*chosen, *renames):
        if name not in known:
            raise UnknownTopic(name)
    topics, skipped = [], []
    for name, topic in sorted(known.items()):
        if chosen and name not in chosen:
            continue
        if await _is_system(source, topic):
            skipped.append(name)
        else:
            topics.append(TopicCopy(topic, renames.get(name, name)))
    taken = [topic_copy.target_name for topic_copy in topics]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise Refused(f"nothing copied: two topics would get the name {', '.join(map(repr, twice))}")
    _check_names(topics, check_name)
    return CopyPlan(topics, skipped)


async def _is_system(source: Store, topic: Topic) -> bool:
    if is_system_topic(topic.name):
        return True
    # The names of a broker and of its cluster are topics, from which others inherit and which have no messages.
    if not topic.permission & PERM_INHERIT and topic.name not in ROCKETMQ_TOPICS:
        return False
    return not any([(await source.bounds(queue)).end for queue in TopicCopy(topic, topic.name).queues])


def _check_names(topics: list[TopicCopy], check_name: Callable[[str], object]) -> None:
    refused: list[tuple[TopicCopy, IllegalName]] = []
    for topic_copy in topics:
        try:
            check_name(topic_copy.target_name)
        except IllegalName as error:
            refused.append((topic_copy, error))
    if refused:
        names = ", ".join(repr(topic_copy.target_name) for topic_copy, _ in refused)
        options = " ".join(
            f"--rename {topic_copy.topic.name}={_suggested(topic_copy.target_name)}" for topic_copy, _ in refused
        )
        raise Refused(
            f"nothing copied: the target does not allow the topic names {names} ({refused[0][1].rule});"
            f" give them other names: {options}"
        )


def _suggested(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).lstrip("_-")[:40] or "topic"


async def create_target_topic(target: Store, topic_copy: TopicCopy) -> Callable[[int], Queue]:
    """Create the topic in the target with enough queues; return the mapping of source to target queues."""
    wanted = msgspec.structs.replace(topic_copy.topic, name=topic_copy.target_name)
    had_lanes = bool(wanted.sys_flag & LANES_SYS_FLAG)
    known = (await target.catalog.list_topics()).get(topic_copy.target_name)
    if known is None:
        await target.catalog.put_topic(wanted)
        known = (await target.catalog.list_topics())[topic_copy.target_name]
    has_lanes = bool(known.sys_flag & LANES_SYS_FLAG)
    if had_lanes and not has_lanes:
        raise Refused(
            f"topic {topic_copy.target_name!r} exists in the target without priorities, which the source has:"
            f" use another name (--rename {topic_copy.topic.name}=...)"
        )

    def target_queue(queue_id: int) -> Queue:
        # Messages of a topic without priorities get the middle priority.
        return Queue(
            topic_copy.target_name,
            read_queue_id(queue_id, Priority.MIDDLE) if has_lanes and not had_lanes else queue_id,
        )

    count = len(topic_copy.queues)
    parts = -(-count // LANE_COUNT) if had_lanes else count
    available = known.read_queues // LANE_COUNT if has_lanes else known.read_queues
    if available < (parts if has_lanes else count):
        await target.catalog.put_topic(
            msgspec.structs.replace(
                known,
                write_queues=max(parts, known.write_queues),
                read_queues=parts * LANE_COUNT if has_lanes else max(count, known.read_queues),
            )
        )
    return target_queue
