"""Current lag of consumer groups, one sample for each topic and group, fetched from the brokers."""

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
"""Retries while a broker restarts, which must not end a stream."""
_INTERNAL_PREFIXES = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class GroupLag(NamedTuple):
    """The lag of a group on a topic."""

    topic: str
    group: str
    lag: int
    """Messages not consumed yet."""
    behind_ms: int | None
    """Age of the last consumed message in the queues with a lag; 0 without a lag."""
    per_second: float
    """Consumption rate of the group over all its topics."""


def fetch_lag(name_servers: str, options: Mapping[str, str], groups: Sequence[str], now_ms: int) -> list[GroupLag]:
    """Return the lag of these groups, or of all groups, for each topic that they consume."""
    client = CLIENT_POOL.get(parse_client_options(name_servers, options))
    found = client.run(_fetch_with_retries(client.session, list(groups)))
    return [lag for progress in found for lag in lag_by_topic(progress, now_ms)]


async def _fetch_with_retries(session: ClientSession, groups: list[str]) -> list[GroupProgress]:
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
                raise  # the user has named this group
    return found


def lag_by_topic(progress: GroupProgress, now_ms: int) -> list[GroupLag]:
    """Return the lag by topic, without the retry and dead-letter topics of the group."""
    found = []
    for topic in sorted({queue.topic for queue in progress.queues if not queue.topic.startswith(_INTERNAL_PREFIXES)}):
        queues = [each for queue, each in progress.queues.items() if queue.topic == topic]
        lagging = [each for each in queues if each.lag > 0]
        oldest = min((each.read_ms for each in lagging), default=now_ms)
        behind_ms = max(0, now_ms - oldest) if oldest > 0 else None
        found.append(
            GroupLag(topic, progress.group, sum(each.lag for each in lagging), behind_ms, progress.messages_per_s)
        )
    return found
