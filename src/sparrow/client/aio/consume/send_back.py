"""Messages that a handler did not take, and what becomes of them.

1. Of a group that shares: given back to their broker, or sent to the group's retry topic from here.
2. Of one whose members read everything: nobody keeps them, so they are tried again here, or dropped.
3. Without a group: passed on. They do not come again.
"""

from __future__ import annotations

import logging
from typing import Protocol

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.queue_fetcher import QueueFetcher
from sparrow.client.aio.produce.direct_send import send_once
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.retry import (
    DELAY_LEVEL_DEAD_LETTER,
    DeadLetter,
    delay_level_for,
    is_handler_decision,
    make_retry_message,
)
from sparrow.model.errors import ConnectionLost, GroupRequired, RequestTimeout, SparrowError, Unavailable
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import SendMessageBack

log = logging.getLogger(__name__)

DEFAULT_RETRIES_MAX = 16
"""RocketMQ's, where the consumer has not said and the request must."""
_COMPRESS_ABOVE_BYTES = 4096


class FailurePolicy(Protocol):
    """False: it could not be done just now; the message is still ours."""

    async def give_back(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """It is to come again later, unless the handler chose otherwise."""
        ...

    async def bury(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """It is to come no more."""
        ...


class SkipFailed:
    async def give_back(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """That a handler failed has been logged; that it asked for what cannot be had has not."""
        if is_handler_decision(failure):
            why = GroupRequired(f"what {type(failure).__name__} asks for")
            log.warning("message passed on", extra={"queue": str(feed.queue), "why": str(why)})
        return True

    bury = give_back


class RetryLocally:
    async def give_back(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        return isinstance(failure, DeadLetter) and await self.bury(feed, message, failure)

    async def bury(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        log.warning("message dropped", extra={"queue": str(feed.queue), "message_id": message.unique_key})
        return True


class SendBackToBroker:
    """To the broker of the queue it came from."""

    def __init__(self, session: ClientSession, group: str, retries_max: int | None) -> None:
        self._giving_back = RetrySender(session, group, retries_max)

    async def give_back(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        return await self._giving_back.give_back(feed.queue, message, delay_level_for(failure))

    async def bury(self, feed: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Where messages come in order, how often it was tried is known only here: the broker's record says 0."""
        return await self._giving_back.send_to_retry_topic(feed.queue, message, DELAY_LEVEL_DEAD_LETTER)


class RetrySender:
    """How the consumers of one group get rid of a message of one queue. False: it could not be done just now."""

    def __init__(self, session: ClientSession, group: str, retries_max: int | None) -> None:
        self._session, self._group, self._retries_max = session, group, retries_max
        self._encoder = MessageEncoder(
            session.unique_ids, compress_above_bytes=_COMPRESS_ABOVE_BYTES, message_bytes_max=1 << 30
        )

    async def give_back(self, queue: QueueRef, message: StoredMessage, level: int) -> bool:
        """The broker copies its own record. Where it has none any more, it gets ours."""
        header = SendMessageBack(
            physical_offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_message_id=message.unique_key,
            origin_topic=message.topic,
            reconsume_times_max=self._retries_max,
            broker_name=queue.broker_name,
        )
        try:
            await self._session.invoke(self._address(queue), RequestCode.CONSUMER_SEND_MSG_BACK, header)
            return True
        except (ConnectionLost, RequestTimeout) as error:
            return _not_now(queue, error)
        except SparrowError as error:
            log.info("message not taken back", extra={"queue": str(queue), "why": str(error)})
            return await self.send_to_retry_topic(queue, message, level)

    async def send_to_retry_topic(self, queue: QueueRef, message: StoredMessage, level: int) -> bool:
        """To the retry topic on the queue's broker. Worn out, or sent `DELAY_LEVEL_DEAD_LETTER`, it is buried there."""
        retries_max = self._retries_max if self._retries_max is not None else DEFAULT_RETRIES_MAX
        times = message.reconsume_times + 1
        if level == DELAY_LEVEL_DEAD_LETTER:
            # RocketMQ 4 buries at the limit, 5 beyond it: this is beyond it for both.
            times = max(times, retries_max + 1)
        again = make_retry_message(message, self._group, level)
        body, properties, _ = self._encoder.encode(again)
        try:
            await send_once(
                self._session,
                QueueRef(RETRY_TOPIC_PREFIX + self._group, queue.broker_name, 0),
                await self._encoder.single_payload(again, body, properties),
                group=self._group,
                reconsume_times=times,
                reconsume_times_max=retries_max,
            )
            return True
        except SparrowError as error:
            return _not_now(queue, error)

    def _address(self, queue: QueueRef) -> str:
        route = self._session.cached_route(queue.topic)
        address = route.address_of(queue.broker_name) if route is not None else None
        if address is None:
            raise Unavailable(f"no route leads to broker {queue.broker_name!r}")
        return address


def _not_now(queue: QueueRef, error: SparrowError) -> bool:
    log.info("message not given back", extra={"queue": str(queue), "why": str(error)})
    return False
