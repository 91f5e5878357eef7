"""Groups: lag, lanes that fill up, and dead letters."""

from __future__ import annotations

import asyncio

import msgspec

from sparrow.cli.doctor.report import CheckResult, Diagnosis, warning
from sparrow.cli.doctor.thresholds import Thresholds
from sparrow.cli.output import format_duration
from sparrow.client.aio.admin.admin import Admin
from sparrow.model.queue import QueueRef
from sparrow.operations.groups import GroupDetail, GroupSummary, fetch_group, list_groups

_DETAILS_MAX = 20
"""Groups whose queues are looked at: those with the largest lag."""


class LaneLag(msgspec.Struct, frozen=True):
    """What a group has not read of one lane of a topic."""

    group: str
    topic: str
    lane: str
    lag: int


class GroupFacts(msgspec.Struct, frozen=True):
    """All groups, and those that are far behind in detail."""

    groups: list[GroupSummary]
    details: list[GroupDetail]
    lanes: list[LaneLag]


async def fetch_groups(admin: Admin, thresholds: Thresholds) -> GroupFacts:
    """Fetch all groups, and the queues of those with the largest lag."""
    groups = [group for group in await list_groups(admin) if not group.is_system]
    behind = sorted((each for each in groups if each.lag > thresholds.lag_max), key=lambda each: -each.lag)
    details = await asyncio.gather(*(fetch_group(admin, each.name) for each in behind[:_DETAILS_MAX]))
    return GroupFacts(groups, list(details), [lane for detail in details for lane in await _lanes(admin, detail)])


async def _lanes(admin: Admin, detail: GroupDetail) -> list[LaneLag]:
    lags: dict[tuple[str, str], int] = {}
    for topic in detail.topics:
        route = await admin.session.route(topic.topic)
        for queue in topic.queues:
            lane = route.lane_of(QueueRef(topic.topic, queue.broker, queue.queue_id))
            if lane is not None:
                lags[topic.topic, lane.label] = lags.get((topic.topic, lane.label), 0) + queue.lag
    return [LaneLag(detail.name, topic, lane, lag) for (topic, lane), lag in lags.items()]


def check_groups(facts: GroupFacts, thresholds: Thresholds) -> CheckResult:
    """Check that groups keep up, that no lane fills up, and that there are no dead letters."""
    found = [_lag_diagnosis(detail) for detail in facts.details]
    found += [
        warning(
            "full_lane",
            f"group {lane.group}",
            f"{lane.lag:,} messages of lane {lane.lane} of topic {lane.topic} are unread",
            "Messages of higher priority come first: add consumers, or lower broker.lane_starvation_ms.",
        )
        for lane in facts.lanes
        if lane.lag > thresholds.lag_max
    ]
    found += [_dead_letter_diagnosis(group) for group in facts.groups if group.dead_letters]
    worst = max((group.lag for group in facts.groups), default=0)
    seen = f"{len(facts.groups)} groups, largest lag {worst:,}"
    return CheckResult(check="groups", seen=seen, diagnoses=tuple(found))


def _lag_diagnosis(detail: GroupDetail) -> Diagnosis:
    waits = f", the oldest for {format_duration(detail.delay_ms)}" if detail.delay_ms is not None else ""
    if detail.members:
        remedy = f"`sparrow group show {detail.name}` shows the queues: add consumers, or make handlers faster."
    else:
        remedy = (
            f"No member is online: start a consumer, or skip with `sparrow group reset {detail.name} TOPIC --to last`."
        )
    return warning("lag", f"group {detail.name}", f"{detail.lag:,} messages are unread{waits}", remedy)


def _dead_letter_diagnosis(group: GroupSummary) -> Diagnosis:
    return warning(
        "dead_letters",
        f"group {group.name}",
        f"it has {group.dead_letters:,} dead letters",
        f"`sparrow dlq list {group.name}` shows why; `sparrow dlq redrive {group.name}` sends them again.",
    )
