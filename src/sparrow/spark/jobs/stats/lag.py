"""How far groups are behind, asked of the brokers now: a sample for each topic and group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.groups import GroupProgress
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.options import parse_client_options

RETRY_TIMEOUT_S, RETRY_INTERVAL_S = 60.0, 1.0
"""A broker that starts again is no reason to end a stream: it is asked again so long, and so often."""
_OWN = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class GroupLag(NamedTuple):
    topic: str
    group: str
    lag: int
    """Messages to be read."""
    behind_ms: int | None
    """How long ago the last message was stored that the group has read where it is behind; 0 where it is not."""
    per_second: float
    """What the group reads, of all its topics."""


def fetch_lag(name_servers: str, options: Mapping[str, str], groups: Sequence[str], now_ms: int) -> list[GroupLag]:
    """Of these groups, or of all that there are, and of all topics that they read."""
    link = CLIENT_POOL.to(parse_client_options(name_servers, options))
    found = link.run(_patiently(link.session, list(groups)))
    return [lag for progress in found for lag in lag_by_topic(progress, now_ms)]


async def _patiently(session: ClientSession, groups: list[str]) -> list[GroupProgress]:
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return await _progress(session, groups)
        except (Unavailable, TimeoutError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(RETRY_INTERVAL_S)


async def _progress(session: ClientSession, groups: list[str]) -> list[GroupProgress]:
    admin = Admin(session=session)
    found = []
    for group in groups or sorted(await admin.groups()):
        try:
            found.append(await admin.progress(group))
        except Refused:
            if groups:
                raise  # somebody named it
    return found


def lag_by_topic(progress: GroupProgress, now_ms: int) -> list[GroupLag]:
    """By topic. A group's own topics, for retries and what it gave up, are not what anybody sends to."""
    found = []
    for topic in sorted({queue.topic for queue in progress.queues if not queue.topic.startswith(_OWN)}):
        queues = [each for queue, each in progress.queues.items() if queue.topic == topic]
        waiting = [each for each in queues if each.lag > 0]
        oldest = min((each.read_ms for each in waiting), default=now_ms)
        behind = max(0, now_ms - oldest) if oldest > 0 else None
        found.append(
            GroupLag(topic, progress.group, sum(each.lag for each in waiting), behind, progress.messages_per_s)
        )
    return found
