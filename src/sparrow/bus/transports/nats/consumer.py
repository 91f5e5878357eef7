"""A consumer of JetStream streams: push subscriptions of one group, with periodic checks of streams and subjects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sparrow.bus.names import matches
from sparrow.bus.transports.nats import subjects
from sparrow.bus.transports.nats.connection import CLOSE_TIMEOUT_S, MESSAGE_ID_HEADER, NatsConnection
from sparrow.bus.transports.nats.jetstream_admin import NOT_IN_STREAM, JetStreamAdmin, JetStreamError
from sparrow.bus.transports.spi import BrokerDelivery, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import ConnectionLost, Unavailable

log = logging.getLogger(__name__)

FIRST_RESCAN_S = 0.5
"""Soon after the start, since services that start together may overwrite each other's streams; then less often."""
STREAM_TRIES = 5
STREAM_NAME_CHARS_MAX = 100
"""Bounds the stream name in the id of a message without one: an id has at most 128 characters."""
CLOCK_SKEW = timedelta(minutes=1)


class NatsStreamConsumer:
    def __init__(
        self,
        connection: NatsConnection,
        group: str,
        wanted: Sequence[subjects.SubjectFilter],
        *,
        admin: JetStreamAdmin,
        stream_name: Callable[[str], str],
        header_builder: HeaderBuilder | None,
        rescan_interval_s: float,
    ) -> None:
        self._connection, self._group, self._admin = connection, group, admin
        self._everywhere = [each for each in wanted if each.subject is None]
        self._streams: dict[str, list[subjects.SubjectFilter]] = {}
        for each in wanted:
            if each.subject is not None:
                self._streams.setdefault(stream_name(each.subject), []).append(each)
        self._build, self._look_every_s = header_builder, rescan_interval_s
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._ready: deque[tuple[float, Msg]] = deque()
        self._held: dict[str, Msg] = {}
        self._received = asyncio.Event()
        self._since: str | None = None
        self._check_after_s = FIRST_RESCAN_S
        self._check_at = 0.0

    async def join(self) -> None:
        with self._connection.translated_errors():
            await self._check()
            await self._connection.client.flush()  # after this the server knows the subscriptions
        self._since = (datetime.now(UTC) - CLOCK_SKEW).isoformat()

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        while True:
            if self._connection.is_lost:
                raise ConnectionLost(self._connection.address, "the server closed the connection")
            if time.monotonic() >= self._check_at:
                with self._connection.translated_errors(), _cancellable():
                    await self._check()
            self._received.clear()
            if found := self._take(count_max):
                return found
            await self._wait_for_messages()

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        with self._connection.translated_errors():
            for delivery in deliveries:
                await delivery.ack_handle.ack()
                self._held.pop(delivery.ack_handle.reply, None)

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        with self._connection.translated_errors():
            for delivery in deliveries:
                await delivery.ack_handle.nak()
                self._held.pop(delivery.ack_handle.reply, None)

    async def close(self) -> None:
        try:
            with self._connection.translated_errors():
                async with asyncio.timeout(CLOSE_TIMEOUT_S):  # the client would wait forever on a broken connection
                    await self._hand_back()
        except Unavailable as lost:
            log.info("group %(group)s could not be left on NATS: %(error)s", {"group": self._group, "error": lost})
        finally:
            await self._connection.close()

    async def _hand_back(self) -> None:
        if self._connection.is_lost:
            return
        # First stop the pushes, then return what is held: in this order it cannot come back to this consumer.
        await asyncio.gather(*(each.drain() for each in self._subscriptions.values()))  # type: ignore[no-untyped-call]
        for msg in [*self._held.values(), *(msg for _, msg in self._ready)]:
            await msg.nak()
        await self._connection.client.flush()

    # -- messages -------------------------------------------------------------------------------------------------

    def _take(self, count_max: int) -> list[BrokerDelivery]:
        found: list[BrokerDelivery] = []
        while self._ready and len(found) < count_max:
            expires_at, msg = self._ready.popleft()
            if time.monotonic() < expires_at:  # otherwise the server has redelivered it already
                self._held[msg.reply] = msg
                found.append(self._delivery(msg))
        return found

    def _delivery(self, msg: Msg) -> BrokerDelivery:
        headers: dict[str, str | None] = {name: value or None for name, value in (msg.headers or {}).items()}
        about = msg.metadata
        fallback_id = (
            headers.pop(MESSAGE_ID_HEADER, None) or f"{about.stream[:STREAM_NAME_CHARS_MAX]}-{about.sequence.stream}"
        )
        delivery = BrokerDelivery(name=msg.subject, headers=headers, body=msg.data, ack_handle=msg)
        return with_foreign_headers(delivery, fallback_id, self._build)

    async def _wait_for_messages(self) -> None:
        received_event = asyncio.ensure_future(self._received.wait())
        end = asyncio.ensure_future(self._connection.lost.wait())
        try:
            wait_s = max(0.0, self._check_at - time.monotonic())
            await asyncio.wait((received_event, end), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            received_event.cancel()
            end.cancel()

    def _arrival(self, pattern: str | None, ack_wait_s: float) -> Callable[[Msg], Awaitable[None]]:
        async def arrive(msg: Msg) -> None:
            if pattern is not None and not matches(pattern, msg.subject):
                await msg.ack()
                return
            self._ready.append((time.monotonic() + ack_wait_s, msg))
            self._received.set()

        return arrive

    # -- streams and consumers ------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Check streams, subjects, consumers and subscriptions, and create what is missing."""
        for stream, wanted in self._streams.items():
            await self._check_stream(stream, wanted)
        if self._everywhere:
            streams = await self._admin.streams()
            for each in self._everywhere:
                await self._subscribe_everywhere(streams, each)
        self._check_at = time.monotonic() + self._check_after_s
        self._check_after_s = min(self._check_after_s * 2, self._look_every_s)

    async def _check_stream(self, stream: str, wanted: Sequence[subjects.SubjectFilter]) -> None:
        for attempts_left in reversed(range(STREAM_TRIES)):
            actual = await self._admin.ensure_stream(stream, [each.subject for each in wanted if each.subject])
            try:
                for each in wanted:
                    await self._subscribe(actual, each, since=None)
            except JetStreamError as refusal:  # another service has just replaced the subjects
                if refusal.code != NOT_IN_STREAM or not attempts_left:
                    raise
            else:
                return

    async def _subscribe_everywhere(self, streams: dict[str, list[str]], wanted: subjects.SubjectFilter) -> None:
        durable = subjects.durable_name(self._group, wanted.label)
        fitting = [name for name, present in streams.items() if subjects.may_hold(present, wanted.label)]
        infos = [await self._admin.consumer(stream, durable) for stream in fitting]
        # A stream without our consumer is newer than the subscription: read it from that time on.
        created = [info["created"] for info in infos if info is not None]
        since = min(created) if created else self._since
        for stream in fitting:
            await self._subscribe(stream, wanted, since=since)

    async def _subscribe(self, stream: str, wanted: subjects.SubjectFilter, *, since: str | None) -> None:
        durable, queue = subjects.durable_name(self._group, wanted.label), subjects.queue_group(self._group)
        consumer = await self._admin.ensure_consumer(stream, durable, subject=wanted.subject, queue=queue, since=since)
        present = self._subscriptions.get((stream, consumer.durable))
        if present is not None and present.subject == consumer.deliver_subject:
            return
        if present is not None:  # another service has recreated the consumer
            await present.unsubscribe()
        arrive = self._arrival(wanted.pattern, consumer.ack_wait_s)
        self._subscriptions[stream, consumer.durable] = await self._connection.client.subscribe(
            consumer.deliver_subject, queue, cb=arrive
        )


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise a cancellation that the client has swallowed.

    Up to Python 3.11 `asyncio.wait_for`, which the NATS client uses, loses a cancellation that coincides with a result.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    yield
    if task.cancelling() > before:
        raise asyncio.CancelledError
