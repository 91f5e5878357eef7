"""Resends: delivering stored messages to a group once more, with a plan that counts them."""

from __future__ import annotations

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.operations.plans import check_plan, hash_plan


class ResendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages of a topic are resent, and to whom. `Admin.resend` describes the fields."""

    group: str | None = None
    begin: int | None = None
    end: int | None = None
    queue_id: int | None = None
    priority: str | None = None
    broker: str | None = None
    keys: tuple[str, ...] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    includes_unread: bool = False
    """Resend also what the group has not read yet; it gets that twice."""


class ResendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a resend delivers."""

    topic: str
    groups: tuple[str, ...]
    count: int
    """Messages, counted once for each group."""
    missing: int
    """Selected messages that retention has removed."""
    hash: str


async def plan_resend(admin: Admin, topic: str, selection: ResendQuery) -> ResendPlan:
    """Count what a resend would deliver; nothing is delivered."""
    return await _resend(admin, topic, selection, dry_run=True)


async def resend(
    admin: Admin, topic: str, selection: ResendQuery, *, plan: str | None, force: bool = False
) -> ResendPlan:
    """Deliver messages once more as planned, and return what was delivered."""
    current = await plan_resend(admin, topic, selection)
    check_plan(f"the resend of messages of topic {topic!r}", plan, current.hash, force=force)
    return await _resend(admin, topic, selection, dry_run=False)


async def _resend(admin: Admin, topic: str, selection: ResendQuery, *, dry_run: bool) -> ResendPlan:
    done = await admin.resend(
        topic,
        group=selection.group,
        begin=selection.begin,
        end=selection.end,
        queue_id=selection.queue_id,
        priority=selection.priority,
        broker=selection.broker,
        keys=selection.keys,
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        dry_run=dry_run,
        force=selection.includes_unread,
    )
    return ResendPlan(
        topic=topic,
        groups=done.groups,
        count=done.count,
        missing=done.missing,
        hash=hash_plan("resend", topic, msgspec.to_builtins(selection), done.groups, done.count, done.missing),
    )
