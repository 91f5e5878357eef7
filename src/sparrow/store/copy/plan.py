"""What is copied from one store to another, under which names, and into which queues.

Everything that can be refused is refused here, before anything is copied.
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
from sparrow.model.topic import Topic, is_system_topic
from sparrow.store.spi import Store

_MADE_BY_ROCKETMQ = frozenset({"BenchmarkTest", "DefaultHeartBeatSyncerTopic"})
"""In every store of its brokers, used or not, and with a thousand queues."""


class TopicCopy(NamedTuple):
    """A topic, and what it is called where it goes."""

    topic: Topic
    to: str

    @property
    def queues(self) -> list[Queue]:
        count = max(self.topic.read_queues, self.topic.write_queues)
        return [Queue(self.topic.name, number) for number in range(count)]


class CopyPlan(NamedTuple):
    moves: list[TopicCopy]
    left_out: list[str]
    """The broker's own topics: another broker has its own."""


async def plan_copy(
    source: Store, *, chosen: Collection[str], renames: Mapping[str, str], checked: Callable[[str], object]
) -> CopyPlan:
    """The topics to be copied, all if none are chosen. `checked` raises `IllegalName` where a name may not go."""
    known = await source.catalog.list_topics()
    for name in (*chosen, *renames):
        if name not in known:
            raise UnknownTopic(name)
    moves, left_out = [], []
    for name, topic in sorted(known.items()):
        if chosen and name not in chosen:
            continue
        if await _is_system(source, topic):
            left_out.append(name)
        else:
            moves.append(TopicCopy(topic, renames.get(name, name)))
    taken = [move.to for move in moves]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise Refused(f"two topics would both be called {', '.join(map(repr, twice))}: nothing was copied")
    _check_names(moves, checked)
    return CopyPlan(moves, left_out)


async def _is_system(source: Store, topic: Topic) -> bool:
    if is_system_topic(topic.name):
        return True
    # A broker's name and its cluster's are topics, too: others inherit from them, and nobody sends there.
    if not topic.permission & PERM_INHERIT and topic.name not in _MADE_BY_ROCKETMQ:
        return False
    return not any([(await source.bounds(queue)).end for queue in TopicCopy(topic, topic.name).queues])


def _check_names(moves: list[TopicCopy], checked: Callable[[str], object]) -> None:
    refused: list[tuple[TopicCopy, IllegalName]] = []
    for move in moves:
        try:
            checked(move.to)
        except IllegalName as error:
            refused.append((move, error))
    if refused:
        names = ", ".join(repr(move.to) for move, _ in refused)
        words = " ".join(f"--rename {move.topic.name}={_suggested(move.to)}" for move, _ in refused)
        raise Refused(
            f"nothing was copied, for these topics cannot be called so there: {names} ({refused[0][1].rule});"
            f" give them other names: {words}"
        )


def _suggested(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).lstrip("_-")[:40] or "topic"


async def create_target_topic(target: Store, move: TopicCopy) -> Callable[[int], Queue]:
    """Create the topic where it goes, with room for all its queues; which queue goes into which."""
    wanted = msgspec.structs.replace(move.topic, name=move.to)
    had_lanes = bool(wanted.sys_flag & LANES_SYS_FLAG)
    known = (await target.catalog.list_topics()).get(move.to)
    if known is None:
        await target.catalog.put_topic(wanted)
        known = (await target.catalog.list_topics())[move.to]
    has_lanes = bool(known.sys_flag & LANES_SYS_FLAG)
    if had_lanes and not has_lanes:
        raise Refused(f"topic {move.to!r} is there already, without the three priorities that this one has")

    def place(queue_id: int) -> Queue:
        # Without priorities everything was equal: that is what the middle is.
        return Queue(move.to, read_queue_id(queue_id, Priority.MIDDLE) if has_lanes and not had_lanes else queue_id)

    count = len(move.queues)
    parts = -(-count // LANE_COUNT) if had_lanes else count
    room = known.read_queues // LANE_COUNT if has_lanes else known.read_queues
    if room < (parts if has_lanes else count):
        await target.catalog.put_topic(
            msgspec.structs.replace(
                known,
                write_queues=max(parts, known.write_queues),
                read_queues=parts * LANE_COUNT if has_lanes else max(count, known.read_queues),
            )
        )
    return place
