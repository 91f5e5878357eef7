"""Reading all messages of a topic without a group: dead letters, and messages of transactions that were given up."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sparrow import clock
from sparrow.client.aio.admin.queue_bounds import fetch_queue_bounds
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import CHECK_LIMIT_TOPIC, PROPERTY_REAL_TOPIC
from sparrow.wire import record

_PULL_COUNT = 256


async def read_topic(
    session: ClientSession, topic: str, *, group: str, newest: int | None = None
) -> AsyncIterator[StoredMessage]:
    """Yield the messages of a topic; none if it does not exist.

    They are in order, broker by broker, up to the newest one at the time of the call. `newest`: at most this many of
    each queue. `group` is the name that the pulls carry; nothing is committed.
    """
    try:
        route = await session.route(topic, is_fresh=True)
    except UnknownTopic:
        return
    subscription = Subscription.of(topic, version_ms=clock.now_ms())
    bounds = await fetch_queue_bounds(session, [topic]) if newest is not None else {}
    for queue in sorted(route.read_queues):
        offset, end = 0, None
        if newest is not None and queue in bounds:
            offset = max(bounds[queue].first, bounds[queue].end - newest)
        while end is None or offset < end:
            answer = await pull(
                session,
                queue,
                offset,
                group=group,
                subscription=subscription,
                count_max=_PULL_COUNT,
                includes_subscription=True,
            )
            if answer.status is PullStatus.NO_NEW_MESSAGE or (
                answer.status is PullStatus.OFFSET_MOVED and answer.next_offset <= offset
            ):
                break
            end = answer.end if end is None else end
            if answer.status is PullStatus.FOUND:
                for message in record.decode_all(answer.records):
                    yield message
            offset = answer.next_offset


async def read_given_up_transactions(
    session: ClientSession, *, newest: int | None = None
) -> AsyncIterator[StoredMessage]:
    """Yield the messages of transactions that were given up, with the topic that they were meant for."""
    async for message in read_topic(session, CHECK_LIMIT_TOPIC, group="sparrow_transactions", newest=newest):
        message.topic = message.properties.get(PROPERTY_REAL_TOPIC, message.topic)
        yield message
