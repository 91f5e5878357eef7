"""Events through NATS JetStream, in CAP's form: a subject a name, a durable consumer for each name of a group.

1. Streams, durable consumers and delivery groups are called as CAP calls them: its services and ours share a group.
2. A name is refused until a stream takes it, that is until somebody has subscribed: a failed attempt, not a lost event.
3. The server drops an envelope whose id it has seen in the last minutes (its `duplicate_window`).
4. A consumer is of the kind that the server pushes to, because CAP's is. So `prefetch` is no limit here; the server's
   own limit of unacknowledged messages is. What waited here longer than the server waits is left to its next delivery.

A header of NATS cannot tell null from blank: both arrive as null. Blanks around a value are lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from nats import errors as fails
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js import errors as refusals

from sparrow.bus.names import matches
from sparrow.bus.transports.nats import subjects
from sparrow.bus.transports.nats.connection import CLOSE_TIMEOUT_S, MESSAGE_ID_HEADER, NatsConnection
from sparrow.bus.transports.nats.jetstream_admin import NOT_IN_STREAM, JetStreamAdmin, JetStreamError
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import ConnectionLost, Unavailable

log = logging.getLogger(__name__)

FIRST_RESCAN_S = 0.5
"""Soon after the start, since services start together and may have overwritten each other's streams; then rarer."""
STREAM_TRIES = 5
STREAM_NAME_CHARS_MAX = 100
"""Of a stream's name in the id of a message that brought none: an id has 128 characters at most."""
CLOCK_SKEW = timedelta(minutes=1)


class NatsTransport:
    def __init__(
        self,
        url: str,
        *,
        header_builder: HeaderBuilder | None = None,
        stream_storage: str = "file",
        stream_name: Callable[[str], str] = subjects.first_word,
        rescan_interval_s: float = 30.0,
        timeout_s: float = 5.0,
    ) -> None:
        """`url` may be several, with commas. `stream_storage` ("file" or "memory") is for streams that do not exist
        yet. `rescan_interval_s`: so often a listening looks for new streams and for subjects that others have
        removed."""
        self._url, self._build, self._stream_name = url, header_builder, stream_name
        self._storage, self._look_every_s, self._timeout_s = stream_storage, rescan_interval_s, timeout_s
        self._sender: NatsConnection | None = None
        self._opening = asyncio.Lock()

    def check_name(self, name: str) -> None:
        subjects.check_event_subject(name)

    async def open(self) -> None:
        await self._connected()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        sender = await self._connected()
        pending: list[asyncio.Future[api.PubAck] | Exception] = []
        for envelope in envelopes:
            try:
                pending.append(await sender.publish(envelope, self._timeout_s))
            except (fails.Error, refusals.Error, OSError) as cause:
                pending.append(cause)
        waiting = [each for each in pending if isinstance(each, asyncio.Future)]
        if waiting:
            await sender.answers(waiting, self._timeout_s)
        return [
            sender.outcome(each, envelope, self._timeout_s) for each, envelope in zip(pending, envelopes, strict=True)
        ]

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> NatsStreamConsumer:
        wanted = [each for name in dict.fromkeys(names) for each in subjects.subject_filters(name)]
        connection = await NatsConnection.to(self._url, self._timeout_s)
        listening = NatsStreamConsumer(
            connection,
            group,
            wanted,
            admin=JetStreamAdmin(connection.client, storage=self._storage, timeout_s=self._timeout_s),
            stream_name=self._stream_name,
            header_builder=self._build,
            rescan_interval_s=self._look_every_s,
        )
        try:
            await listening.join()
        except BaseException:
            await connection.close()
            raise
        return listening

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _connected(self) -> NatsConnection:
        async with self._opening:
            if self._sender is None or self._sender.is_lost:
                await self.close()
                self._sender = await NatsConnection.to(self._url, self._timeout_s)
            return self._sender


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
        self._news = asyncio.Event()
        self._since: str | None = None
        self._look_after_s = FIRST_RESCAN_S
        self._look_at = 0.0

    async def join(self) -> None:
        with self._connection.translated_errors():
            await self._look()
            await self._connection.client.flush()  # the server knows our subscriptions when this returns
        self._since = (datetime.now(UTC) - CLOCK_SKEW).isoformat()

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        while True:
            if self._connection.is_lost:
                raise ConnectionLost(self._connection.address, "it went away")
            if time.monotonic() >= self._look_at:
                with self._connection.translated_errors(), _cancellable():
                    await self._look()
            self._news.clear()
            if found := self._take(count_max):
                return found
            await self._wait_for_news()

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
                async with asyncio.timeout(
                    CLOSE_TIMEOUT_S
                ):  # the client would wait for ever for a connection that just broke
                    await self._hand_back()
        except Unavailable as lost:
            log.info("left a NATS group without a word", extra={"group": self._group, "why": str(lost)})
        finally:
            await self._connection.close()

    async def _hand_back(self) -> None:
        if self._connection.is_lost:
            return
        # First no more is pushed to us, then what we have goes back: in this order it cannot return to us.
        await asyncio.gather(*(each.drain() for each in self._subscriptions.values()))  # type: ignore[no-untyped-call]
        for msg in [*self._held.values(), *(msg for _, msg in self._ready)]:
            await msg.nak()
        await self._connection.client.flush()

    # -- messages -------------------------------------------------------------------------------------------------

    def _take(self, count_max: int) -> list[BrokerDelivery]:
        found: list[BrokerDelivery] = []
        while self._ready and len(found) < count_max:
            expires_at, msg = self._ready.popleft()
            if time.monotonic() < expires_at:  # else the server has given it to somebody already
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

    async def _wait_for_news(self) -> None:
        news = asyncio.ensure_future(self._news.wait())
        end = asyncio.ensure_future(self._connection.lost.wait())
        try:
            wait_s = max(0.0, self._look_at - time.monotonic())
            await asyncio.wait((news, end), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            end.cancel()

    def _arrival(self, pattern: str | None, ack_wait_s: float) -> Callable[[Msg], Awaitable[None]]:
        async def arrive(msg: Msg) -> None:
            if pattern is not None and not matches(pattern, msg.subject):
                await msg.ack()
                return
            self._ready.append((time.monotonic() + ack_wait_s, msg))
            self._news.set()

        return arrive

    # -- streams and consumers ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """See that everything we rely on is there: streams, their subjects, consumers, and our place at each."""
        for stream, wanted in self._streams.items():
            await self._look_at_stream(stream, wanted)
        if self._everywhere:
            streams = await self._admin.streams()
            for each in self._everywhere:
                await self._subscribe_everywhere(streams, each)
        self._look_at = time.monotonic() + self._look_after_s
        self._look_after_s = min(self._look_after_s * 2, self._look_every_s)

    async def _look_at_stream(self, stream: str, wanted: Sequence[subjects.SubjectFilter]) -> None:
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
        # A stream without our consumer is younger than the others have been ours: it is read from that moment on.
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
        if present is not None:  # the consumer was made anew, by a service of another kind
            await present.unsubscribe()
        arrive = self._arrival(wanted.pattern, consumer.ack_wait_s)
        self._subscriptions[stream, consumer.durable] = await self._connection.client.subscribe(
            consumer.deliver_subject, queue, cb=arrive
        )


@contextmanager
def _cancellable() -> Iterator[None]:
    """Up to Python 3.11 `asyncio.wait_for`, which the client of NATS uses, forgets a cancellation that meets an answer:
    who cancelled us would wait for ever."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    yield
    if task.cancelling() > before:
        raise asyncio.CancelledError
