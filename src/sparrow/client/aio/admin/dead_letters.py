"""Dead letters of a group: reading them without a group, and redriving them to their topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime

from sparrow.client.aio.admin.topic_messages import read_topic
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.consume.retry import make_redriven_message
from sparrow.client.option_checks import validate_value
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_TOPIC
from sparrow.wire.message_ids import format_offset_id

REDRIVE_GROUP = "sparrow_redrive"


async def read_dead_letters(
    session: ClientSession, group: str, *, newest: int | None = None
) -> AsyncIterator[StoredMessage]:
    """Yield the dead letters of a group with their original topic; `newest`: at most this many of each queue."""
    async for letter in read_topic(session, DLQ_TOPIC_PREFIX + group, group=REDRIVE_GROUP, newest=newest):
        letter.topic = letter.properties.get(PROPERTY_RETRY_TOPIC, letter.topic)
        yield letter


async def redrive_dead_letters(
    session: ClientSession, group: str, is_wanted: Callable[[StoredMessage], bool], *, to_group: bool
) -> int:
    """Send the wanted dead letters again, and return how many. They also stay in the dead-letter topic."""
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
    """Return a filter by ids, by time, or for everything. Exactly one must be given, since sending cannot be undone."""
    if (ids is not None) + (since is not None) + everything != 1:
        raise Refused("select the dead letters by exactly one of ids, since and everything=True")
    if ids is not None:
        wanted = {ids} if isinstance(ids, str) else set(ids)
        return lambda letter: not wanted.isdisjoint(known_ids(letter))
    validate_value("since", since, datetime | int | None, "redrive")
    since_ms = 0 if since is None else int(since.timestamp() * 1000) if isinstance(since, datetime) else since
    return lambda letter: letter.store_ms >= since_ms


def known_ids(letter: StoredMessage) -> set[str]:
    """Return the ids by which a dead letter is known: its unique id, the id of its first record, and of this one."""
    here = format_offset_id(letter.store_host, letter.physical_offset)
    return {each for each in (letter.unique_key, letter.properties.get(PROPERTY_ORIGIN_MESSAGE_ID), here) if each}
