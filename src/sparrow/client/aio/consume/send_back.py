"""What happens to messages whose handler failed.

1. In a cluster group they are sent back to their broker, or sent to the retry topic of the group from here.
2. In a broadcast group no broker keeps them, so they are retried here, or dropped.
3. Without a group they are skipped, and not delivered again.
4. Where delivery is at most once, they are dropped, unless the handler makes them dead letters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from sparrow.client.aio.connection.leader_requests import invoke_leader
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.queue_fetcher import QueueFetcher
from sparrow.client.aio.produce.direct_send import send_once
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.consume.pulled_batch import PulledBatch
from sparrow.client.consume.retry import (
    DELAY_LEVEL_DEAD_LETTER,
    DeadLetter,
    delay_level_for,
    describe_failure,
    is_handler_decision,
    make_retry_message,
)
from sparrow.client.options import ConsumerOptions
from sparrow.model.errors import ConnectionLost, GroupRequired, RequestTimeout, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.consume_failure import REASON_BYTES_MAX, shorten
from sparrow.wire.headers import SendMessageBack

log = logging.getLogger(__name__)

DEFAULT_RETRIES_MAX = 16
"""RocketMQ's default, for requests that must contain a limit when the consumer has none."""
_COMPRESS_ABOVE_BYTES = 4096
_CONCURRENT_REQUESTS = 32
"""Of the messages of a failed batch."""


class FailurePolicy(Protocol):
    """Handles failed messages. Methods return False if it is impossible now and the message is still ours."""

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Have the message delivered again later, unless its handler decided otherwise."""
        ...

    async def dead_letter(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Prevent further deliveries of the message."""
        ...


class SkipFailed:
    """Skips failed messages: consumers without a group."""

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Skip the message. The failure has been logged; a decision that needs a group is logged here."""
        if is_handler_decision(failure):
            why = GroupRequired(f"what {type(failure).__name__} asks for")
            log.warning(
                "message %(message_id)s of %(queue)s skipped: %(error)s",
                {"queue": str(fetcher.queue), "message_id": message.unique_key, "error": str(why)},
            )
        return True

    dead_letter = send_back


class RetryLocally:
    """Retries failed messages in this process: broadcast groups."""

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Drop a dead letter; return False to have another message retried here."""
        return isinstance(failure, DeadLetter) and await self.dead_letter(fetcher, message, failure)

    async def dead_letter(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Drop the message."""
        log.warning(
            "message %(message_id)s of %(queue)s dropped: %(error)r; a broadcast group has no dead letters",
            {"queue": str(fetcher.queue), "message_id": message.unique_key, "error": failure},
        )
        return True


class DropFailed:
    """Drops failed messages: delivery at most once. Only a handler that raises `DeadLetter` keeps them."""

    def __init__(self, dead_letters: FailurePolicy) -> None:
        """Create it. `dead_letters` is what makes dead letters where messages are delivered again."""
        self._dead_letters = dead_letters

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Make a dead letter, or drop the message. The failure has been logged; decisions are logged here."""
        if isinstance(failure, DeadLetter):
            if await self._dead_letters.dead_letter(fetcher, message, failure):
                return True
        elif not is_handler_decision(failure):
            return True
        log.warning(
            "message %(message_id)s of %(queue)s dropped: %(error)r; it is delivered at most once",
            {"queue": str(fetcher.queue), "message_id": message.unique_key, "error": failure},
        )
        return True

    dead_letter = send_back


class SendBackToBroker:
    """Sends failed messages back to the broker of their queue: cluster groups."""

    def __init__(self, session: ClientSession, group: str, retries_max: int | None) -> None:
        self._retry_sender = RetrySender(session, group, retries_max)

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Send the message back with the delay level that its handler chose."""
        return await self._retry_sender.send_back(fetcher.queue, message, delay_level_for(failure), failure)

    async def dead_letter(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Make the message a dead letter.

        In orderly consumption only this process counts retries: the broker's record says 0.
        """
        return await self._retry_sender.send_to_retry_topic(fetcher.queue, message, DELAY_LEVEL_DEAD_LETTER, failure)


class SendBackEach:
    """Applies a policy to each message of a failed batch. The batch keeps those for which it is impossible now."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy

    async def send_back(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Have the messages of a batch delivered again later."""
        return await self._apply(self._policy.send_back, fetcher, message, failure)

    async def dead_letter(self, fetcher: QueueFetcher, message: StoredMessage, failure: Exception) -> bool:
        """Prevent further deliveries of the messages of a batch."""
        return await self._apply(self._policy.dead_letter, fetcher, message, failure)

    async def _apply(
        self,
        action: Callable[[QueueFetcher, StoredMessage, Exception], Awaitable[bool]],
        fetcher: QueueFetcher,
        batch: object,
        failure: Exception,
    ) -> bool:
        assert isinstance(batch, PulledBatch)
        messages, left = batch.messages, []
        for at in range(0, len(messages), _CONCURRENT_REQUESTS):
            some = messages[at : at + _CONCURRENT_REQUESTS]
            are_gone = await asyncio.gather(*(action(fetcher, message, failure) for message in some))
            left += [message for message, is_gone in zip(some, are_gone, strict=True) if not is_gone]
        if left:
            batch.keep(left)
        return not left


def choose_failure_policy(session: ClientSession, group: str | None, options: ConsumerOptions) -> FailurePolicy:
    """Return what happens to failed messages of a consumer."""
    if group is None:
        return SkipFailed()
    policy: FailurePolicy = (
        RetryLocally() if options["mode"] == "broadcast" else SendBackToBroker(session, group, options["retries_max"])
    )
    return DropFailed(policy) if options["at_most_once"] else policy


class RetrySender:
    """Sends failed messages of one group back. Methods return False if it is impossible now."""

    def __init__(self, session: ClientSession, group: str, retries_max: int | None) -> None:
        self._session, self._group, self._retries_max = session, group, retries_max
        self._encoder = MessageEncoder(
            session.unique_ids, compress_above_bytes=_COMPRESS_ABOVE_BYTES, message_bytes_max=1 << 30
        )

    async def send_back(self, queue: QueueRef, message: StoredMessage, level: int, failure: Exception) -> bool:
        """Have the broker copy its own record to the retry topic. If it no longer has the record, send our copy."""
        described = describe_failure(failure)
        header = SendMessageBack(
            physical_offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_message_id=message.unique_key,
            origin_topic=message.topic,
            reconsume_times_max=self._retries_max,
            broker_name=queue.broker_name,
            dlq_reason=shorten(described.reason, REASON_BYTES_MAX),
            dlq_error_type=described.error_type or None,
            dlq_traceback=described.traceback or None,
        )
        try:
            await invoke_leader(
                self._session, queue.topic, queue.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, header
            )
            return True
        except (ConnectionLost, RequestTimeout) as error:
            return _not_now(queue, error)
        except SparrowError as error:
            log.info(
                "broker did not take message %(message_id)s of %(queue)s back: %(error)s; it goes to the retry topic",
                {"queue": str(queue), "message_id": message.unique_key, "error": str(error)},
            )
            return await self.send_to_retry_topic(queue, message, level, failure)

    async def send_to_retry_topic(
        self, queue: QueueRef, message: StoredMessage, level: int, failure: Exception
    ) -> bool:
        """Send the message to the retry topic on its broker. Without retries left, it becomes a dead letter there."""
        retries_max = self._retries_max if self._retries_max is not None else DEFAULT_RETRIES_MAX
        times = message.reconsume_times + 1
        if level == DELAY_LEVEL_DEAD_LETTER:
            # RocketMQ 4 makes it a dead letter at the limit, 5 beyond it: this is beyond it for both.
            times = max(times, retries_max + 1)
        values = describe_failure(failure).properties(
            consumer=self._session.client_id, attempt=message.reconsume_times + 1
        )
        retry = make_retry_message(message, self._group, level, values)
        body, properties, _ = self._encoder.encode(retry)
        try:
            await send_once(
                self._session,
                QueueRef(RETRY_TOPIC_PREFIX + self._group, queue.broker_name, 0),
                await self._encoder.single_payload(retry, body, properties),
                group=self._group,
                reconsume_times=times,
                reconsume_times_max=retries_max,
            )
            return True
        except SparrowError as error:
            return _not_now(queue, error)


def _not_now(queue: QueueRef, error: SparrowError) -> bool:
    log.info(
        "message of %(queue)s not sent back: %(error)s; it is retried here", {"queue": str(queue), "error": str(error)}
    )
    return False
