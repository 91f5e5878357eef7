"""Dead letters: what a group gave up, read without a group of one's own, and sent again when its reason is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullStatus, pull
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.retry import make_redriven_message
from sparrow.client.subscription import Subscription
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_TOPIC
from sparrow.wire import record
from sparrow.wire.message_ids import format_offset_id

REDRIVE_GROUP = "sparrow_redrive"
_PULL_COUNT = 256


async def read_dead_letters(session: ClientSession, group: str) -> AsyncIterator[StoredMessage]:
    """In the order in which they died, broker by broker, up to the newest of now. Their `topic` is the one they were
    sent to."""
    topic = DLQ_TOPIC_PREFIX + group
    try:
        route = await session.route(topic, is_fresh=True)
    except UnknownTopic:
        return  # made with the first dead letter: there is none
    subscription = Subscription.of(topic, version_ms=clock.now_ms())
    for queue in sorted(route.read_queues):
        offset, end = 0, None
        while end is None or offset < end:
            answer = await pull(
                session,
                queue,
                offset,
                group=REDRIVE_GROUP,
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
                for letter in record.decode_all(answer.records):
                    letter.topic = letter.properties.get(PROPERTY_RETRY_TOPIC, letter.topic)
                    yield letter
            offset = answer.next_offset


async def redrive_dead_letters(
    session: ClientSession, group: str, is_wanted: Callable[[StoredMessage], bool], *, to_group: bool
) -> int:
    """Send the wanted ones again; how many there were. The dead letters themselves stay where they are."""
    count = 0
    async with Producer(group=REDRIVE_GROUP, session=session) as producer:
        async for letter in read_dead_letters(session, group):
            if is_wanted(letter):
                await producer.send(make_redriven_message(letter, group, to_group_only=to_group))
                count += 1
    return count


def dead_letter_filter(
    ids: Collection[str] | None, since: datetime | int | None, *, everything: bool
) -> Callable[[StoredMessage], bool]:
    """Which dead letters are meant; exactly one way to say so is allowed, since sending again cannot be undone."""
    if (ids is not None) + (since is not None) + everything != 1:
        raise Refused("which dead letters? Give their ids, a time since which they died, or everything=True")
    if ids is not None:
        wanted = {ids} if isinstance(ids, str) else set(ids)
        return lambda letter: not wanted.isdisjoint(known_ids(letter))
    since_ms = 0 if since is None else int(since.timestamp() * 1000) if isinstance(since, datetime) else since
    return lambda letter: letter.store_ms >= since_ms


def known_ids(letter: StoredMessage) -> set[str]:
    """The ids by which somebody may know it: its sender's, that of its first record, and that of this one."""
    here = format_offset_id(letter.store_host, letter.physical_offset)
    return {each for each in (letter.unique_key, letter.properties.get(PROPERTY_ORIGIN_MESSAGE_ID), here) if each}
