"""Resets of a group's offsets, with a plan that shows the old and the new offset of each queue."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.group_state import fetch_committed
from sparrow.client.aio.admin.offset_reset import reset_queues
from sparrow.model.errors import Refused
from sparrow.model.queue import QueueBounds, QueueRef
from sparrow.model.topic import validate_group_name
from sparrow.operations.errors import MembersOnline, PlanChanged
from sparrow.operations.plans import check_plan, hash_plan


class ResetTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group continues: exactly one of the first three. Without a queue, all queues of the topic."""

    position: Literal["first", "last"] | None = None
    time: datetime | int | None = None
    """The first message stored at or after this time; ms since 1970 or a datetime."""
    offset: int | None = None
    """This offset; needs the queue."""
    broker: str | None = None
    queue_id: int | None = None
    expected: int | None = None
    """The offset that the queue must have now; needs the queue."""

    def __post_init__(self) -> None:
        if (self.position is not None) + (self.time is not None) + (self.offset is not None) != 1:
            raise Refused("a reset needs exactly one of position (first or last), time and offset")
        if (self.broker is None) != (self.queue_id is None):
            raise Refused("one queue is named by its broker and its queue id: give both or none")
        if self.queue_id is None and (self.offset is not None or self.expected is not None):
            raise Refused("a reset to an offset needs one queue: give broker and queue id")


class QueueReset(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset does to a queue."""

    broker: str
    queue_id: int
    first: int
    end: int
    old: int | None
    """None: the group has never committed an offset."""
    new: int

    @property
    def difference(self) -> int:
        """Messages delivered again (negative), or skipped (positive)."""
        return 0 if self.old is None else self.new - self.old


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset would do."""

    group: str
    topic: str
    members: int
    """Members that are online: they continue from the new offsets at once."""
    queues: tuple[QueueReset, ...]
    again: int
    """Messages that would be delivered again."""
    skipped: int
    """Messages that would not be delivered."""
    hash: str


async def plan_reset(admin: Admin, group: str, topic: str, target: ResetTarget) -> ResetPlan:
    """Return what a reset would do; nothing changes."""
    validate_group_name(group)
    route = await admin.route(topic)
    bounds, committed, members = await asyncio.gather(
        admin.topic_bounds(topic), fetch_committed(admin.session, group, route), admin.members(group)
    )
    chosen = [queue for queue in route.read_queues if queue in bounds and _is_chosen(queue, target)]
    if not chosen:
        raise Refused(f"topic {topic!r} has no queue {target.queue_id} on broker {target.broker!r}")
    new = await gather_all(_new_offset(admin, queue, bounds[queue], target) for queue in chosen)
    queues = tuple(
        QueueReset(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            first=bounds[queue].first,
            end=bounds[queue].end,
            old=committed.get(queue),
            new=offset,
        )
        for queue, offset in zip(chosen, new, strict=True)
    )
    if target.expected is not None and queues[0].old != target.expected:
        raise PlanChanged(
            f"the reset of group {group!r} on {topic!r}, queue {target.queue_id} of {target.broker!r}",
            str(target.expected),
            str(queues[0].old),
        )
    moved_back = [max(queue.first, queue.new) - queue.old for queue in queues if queue.old is not None]
    return ResetPlan(
        group=group,
        topic=topic,
        members=len(members),
        queues=queues,
        again=-sum(difference for difference in moved_back if difference < 0),
        skipped=sum(queue.difference for queue in queues if queue.difference > 0),
        hash=_hash(group, topic, target, queues),
    )


async def reset_offsets(
    admin: Admin, group: str, topic: str, target: ResetTarget, *, plan: str | None, force: bool = False
) -> ResetPlan:
    """Reset a group as planned, and return what was done.

    Without `force` the plan must be the current one, and no member may be online.
    """
    current = await plan_reset(admin, group, topic, target)
    if current.members and not force:
        raise MembersOnline(group, current.members)
    check_plan(f"the reset of group {group!r} on topic {topic!r}", plan, current.hash, force=force)
    await reset_queues(
        admin.session,
        group,
        topic,
        {QueueRef(topic, queue.broker, queue.queue_id): queue.new for queue in current.queues},
    )
    return current


def _is_chosen(queue: QueueRef, target: ResetTarget) -> bool:
    return target.queue_id is None or (queue.broker_name == target.broker and queue.queue_id == target.queue_id)


async def _new_offset(admin: Admin, queue: QueueRef, bounds: QueueBounds, target: ResetTarget) -> int:
    if target.position is not None:
        return bounds.first if target.position == "first" else bounds.end
    if target.offset is not None:
        if not bounds.first <= target.offset <= bounds.end:
            raise Refused(
                f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker_name!r} holds offsets "
                f"{bounds.first} to {bounds.end}: it cannot be read from {target.offset}"
            )
        return target.offset
    assert target.time is not None
    time_ms = int(target.time.timestamp() * 1000) if isinstance(target.time, datetime) else target.time
    if bounds.first == bounds.end:
        return bounds.end
    return min(max(await admin.offset_at(queue, time_ms), bounds.first), bounds.end)


def _hash(group: str, topic: str, target: ResetTarget, queues: tuple[QueueReset, ...]) -> str:
    """Return the hash. The end of a queue moves with every message, so "last" stands for itself."""
    new = [target.position if target.position == "last" else queue.new for queue in queues]
    old = [(queue.broker, queue.queue_id, queue.old) for queue in queues]
    return hash_plan("reset", group, topic, msgspec.to_builtins(target), old, new)
