"""Transport for Sparrow and Apache RocketMQ: a topic per event name, a consumer group per group.

1. Events are sent in batches. Those with a key go to the queue of its hash, one batch after the other. If one is
   refused, later events of its key are not sent in that call; if the broker is unreachable, nothing more is.
2. Acknowledged offsets are committed a moment later and at closing: after a crash some acknowledged events, and all
   others, are delivered again.
3. Events of a queue are delivered in its order, released ones first.
4. A new group starts with the first event. Missing topics are looked up every second, wildcards every
   `scan_interval_s`.
5. Connections to a broker that went away are reopened automatically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from sparrow.bus.codec.document import DOCUMENT_VERSION_DEFAULT
from sparrow.bus.transports.sparrow.consumer import SparrowGroupConsumer, check_any_broker
from sparrow.bus.transports.sparrow.message_format import MessageForm, group_of, to_message, topic_of
from sparrow.bus.transports.spi import Envelope, HeaderBuilder
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.options import Prefetch, default_name_servers
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.access.token import Credentials
from sparrow.model.errors import (
    Closed,
    FlushTimeout,
    NotPermitted,
    Refused,
    ReplicationTimeout,
    SparrowError,
    Unavailable,
    UnknownTopic,
)
from sparrow.model.message import Message
from sparrow.model.send_result import SendResult, SendStatus
from sparrow.wire.bodies import QueueRef

BATCH_COUNT_MAX = 500
BATCH_BYTES_MAX = 256 * 1024
_MESSAGE_OVERHEAD_BYTES = 512
"""Approximate size of a message in a batch besides its body."""
_SEPARATE_BODY_BYTES = 32 * 1024
"""A body of this size is sent alone, because then it is compressed."""
_BATCH_REFUSALS = (UnknownTopic, NotPermitted)
"""Refusals that concern the whole batch."""

_Numbered = tuple[int, str | None, Message]
"""Index of the envelope, its key, and the message."""
_Outcomes = list[Exception | None]


class SparrowTransport:
    """A transport for Sparrow or RocketMQ.

    ```python
    bus = EventBus("postgresql://…", SparrowTransport("10.0.0.1:9876;10.0.0.2:9876", form="cap"))
    ```
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        form: MessageForm = "document",
        version: str = DOCUMENT_VERSION_DEFAULT,
        credentials: Credentials | None = None,
        header_builder: HeaderBuilder | None = None,
        timeout_ms: int = 5_000,
        scan_interval_s: float = 30.0,
        commit_interval_ms: int = 1_000,
        topic_queues: int = 4,
    ) -> None:
        """Create a transport.

        Without `name_servers`, those of the environment variable `SPARROW_NAME_SERVERS` are used, else 127.0.0.1:9876.
        `form` is how events are written; every form is read. `version` is written into documents. `header_builder`
        creates the headers of messages that no bus sent. `timeout_ms` applies to each batch with all its attempts.
        `topic_queues` is the number of queues of a topic that the first event creates.
        """
        self._name_servers, self._form, self._version = name_servers or default_name_servers(), form, version
        self._credentials, self._header_builder = credentials, header_builder
        self._timeout_ms, self._topic_queues = timeout_ms, topic_queues
        self._scan_interval_s, self._commit_interval_ms = scan_interval_s, commit_interval_ms
        self._producer: Producer | None = None
        self._is_in_doubt = False
        """A send did not reach its broker: `open` asks the name servers again whether there is one."""
        self._opening = asyncio.Lock()
        """The relay and the receivers open the transport at the same time: one producer serves them."""
        self._listenings: set[SparrowGroupConsumer] = set()

    def check_name(self, name: str) -> None:
        topic_of(name)

    async def open(self) -> None:
        if self._producer is not None and not self._is_in_doubt:
            return
        async with self._opening:
            if self._producer is None:
                self._producer = await self._open_producer()
            elif self._is_in_doubt:
                await check_any_broker(Admin(session=self._producer.session))
            self._is_in_doubt = False

    async def _open_producer(self) -> Producer:
        producer = Producer(
            self._name_servers,
            group="sparrow_bus",
            timeout_ms=self._timeout_ms,
            default_topic_queues=self._topic_queues,
            credentials=self._credentials,
        )
        await producer.open()
        try:
            await check_any_broker(Admin(session=producer.session))
        except BaseException:
            await producer.close()
            raise
        return producer

    async def close(self) -> None:
        await asyncio.gather(*(listening.close() for listening in list(self._listenings)))
        if self._producer is not None:
            producer, self._producer = self._producer, None
            self._opening = asyncio.Lock()  # the next open may be on another event loop
            await producer.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        """Send envelopes, and return an error or None for each.

        A broker that stored an event without confirming that it is on disk counts as a failure; a late replica does
        not.
        """
        producer = self._producer
        if producer is None:
            raise Closed("the transport")
        outcomes: _Outcomes = [None] * len(envelopes)
        by_topic: dict[str, list[_Numbered]] = {}
        in_order: dict[str, dict[str, list[_Numbered]]] = {}
        broken: dict[tuple[str, str], SparrowError] = {}
        for number, envelope in enumerate(envelopes):
            key = envelope.key
            try:
                message = to_message(envelope, self._form, version=self._version)
            except SparrowError as error:
                outcomes[number] = error
                if key is not None:
                    broken[envelope.name, key] = error
                continue
            if key is None:
                by_topic.setdefault(message.topic, []).append((number, key, message))
            elif broken and (envelope.name, key) in broken:
                outcomes[number] = broken[envelope.name, key]
            else:
                in_order.setdefault(message.topic, {}).setdefault(key, []).append((number, key, message))
        works = [
            _send_batch(producer, batch, None, outcomes, {})
            for messages in by_topic.values()
            for batch in _batches(messages)
        ]
        works += [self._send_in_order(producer, topic, by_key, outcomes) for topic, by_key in in_order.items()]
        if len(works) == 1:
            await works[0]
        else:
            await asyncio.gather(*works)
        self._is_in_doubt = any(isinstance(outcome, Unavailable) for outcome in outcomes)
        return outcomes

    async def _send_in_order(
        self, producer: Producer, topic: str, by_key: dict[str, list[_Numbered]], outcomes: _Outcomes
    ) -> None:
        """Send to all queues in parallel, and to each queue one batch after the other."""
        try:
            queues = (await producer.session.route(topic, default_topic_queues=self._topic_queues)).write_queues
            if not queues:
                raise Unavailable(f"topic {topic!r} has no writable queue on a master")
        except SparrowError as error:
            for messages in by_key.values():
                _fail(messages, error, outcomes)
            return
        by_queue: dict[QueueRef, list[_Numbered]] = {}
        for key, messages in by_key.items():
            by_queue.setdefault(by_hash(key)(queues, messages[0][2]), []).extend(messages)
        await asyncio.gather(*(_send_queue(producer, some, queue, outcomes) for queue, some in by_queue.items()))

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> SparrowGroupConsumer:
        """Join a group; `prefetch` is the number of unacknowledged events per queue."""
        consumer = Consumer(
            self._name_servers,
            group=group_of(group),
            consume_from="first",
            prefetch=Prefetch(count_max=max(2, prefetch), pull_count_max=max(32, prefetch), pull_bytes_max=1 << 20),
            commit_interval_ms=self._commit_interval_ms,
            timeout_ms=self._timeout_ms,
            credentials=self._credentials,
        )
        listening = SparrowGroupConsumer(
            consumer, names, build=self._header_builder, scan_interval_s=self._scan_interval_s
        )
        self._listenings.add(listening)
        listening.on_closed = self._listenings.discard
        try:
            await listening.open()
        except BaseException:
            await listening.close()
            raise
        return listening


# -- batches ----------------------------------------------------------------------------------------------------------


def _batches(messages: Sequence[_Numbered]) -> list[list[_Numbered]]:
    """Split messages into requests."""
    batches: list[list[_Numbered]] = []
    batch: list[_Numbered] = []
    size = 0
    for numbered in messages:
        body_bytes = len(numbered[2].body)
        if batch and (
            len(batch) >= BATCH_COUNT_MAX or size + body_bytes > BATCH_BYTES_MAX or body_bytes > _SEPARATE_BODY_BYTES
        ):
            batches.append(batch)
            batch, size = [], 0
        batch.append(numbered)
        size += body_bytes + _MESSAGE_OVERHEAD_BYTES if body_bytes <= _SEPARATE_BODY_BYTES else BATCH_BYTES_MAX
    if batch:
        batches.append(batch)
    return batches


async def _send_queue(producer: Producer, messages: Sequence[_Numbered], queue: QueueRef, outcomes: _Outcomes) -> None:
    batches, refused = _batches(messages), dict[str | None, Exception]()
    for index, batch in enumerate(batches):
        failure = await _send_batch(producer, batch, queue, outcomes, refused)
        if failure is not None:
            for later in batches[index + 1 :]:
                _fail(later, failure, outcomes)
            return


async def _send_batch(
    producer: Producer,
    batch: Sequence[_Numbered],
    queue: QueueRef | None,
    outcomes: _Outcomes,
    refused: dict[str | None, Exception],
) -> SparrowError | None:
    """Send one batch; return the error after which nothing more should be sent there.

    `refused` holds the keys whose further events are not sent, and why.
    """
    if refused:
        for numbered in batch:
            if numbered[1] in refused:
                _fail([numbered], refused[numbered[1]], outcomes)
        batch = [numbered for numbered in batch if numbered[1] not in refused]
    messages = [message for _, _, message in batch]
    try:
        if len(messages) == 1:
            _check_flushed(await producer.send(messages[0], queue=queue), producer)
        elif messages:
            _check_flushed((await producer.send_batch(messages, queue=queue))[0], producer)
    except _BATCH_REFUSALS as error:
        _fail(batch, error, outcomes)
    except Refused as error:
        if len(batch) == 1:
            ((number, key, _),) = batch
            outcomes[number] = error
            if key is not None:
                refused[key] = error
            return None
        # One of them is the reason: send them one by one.
        for index, numbered in enumerate(batch):
            failure = await _send_batch(producer, [numbered], queue, outcomes, refused)
            if failure is not None:
                _fail(batch[index + 1 :], failure, outcomes)
                return failure
    except SparrowError as error:
        _fail(batch, error, outcomes)
        return error
    return None


def _check_flushed(result: SendResult, producer: Producer) -> None:
    if result.status is SendStatus.FLUSH_DISK_TIMEOUT:
        raise FlushTimeout(producer.timeout_ms)
    if result.status is SendStatus.FLUSH_SLAVE_TIMEOUT:
        raise ReplicationTimeout(producer.timeout_ms)


def _fail(messages: Iterable[_Numbered], error: Exception, outcomes: _Outcomes) -> None:
    for number, _, _ in messages:
        outcomes[number] = error
