"""Messages: one by id, some by key, and a bounded search of a topic by time, tag, key and text.

1. A search reads queues in the order of store time and stops at its limits: messages found, messages read, bytes
   read, seconds. The result says whether it read everything, and has a cursor to continue with.
2. It reads as RocketMQ's tools do, under their group; no offset is committed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Literal

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.queue_bounds import fetch_queue_bounds
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullResult, PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.message import Host, StoredMessage
from sparrow.model.protocol import PULL_MESSAGES_DEFAULT, TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.operations.errors import NotFound
from sparrow.wire import record
from sparrow.wire.message_ids import format_offset_id

KEY_MATCHES_MAX = 200
SearchOrder = Literal["newest", "oldest"]


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message, and where it is."""

    id: str
    """The id that the sender assigned, or the offset id if it assigned none."""
    offset_id: str
    topic: str
    broker: str | None
    """None if no broker of its topic has the address in the record any more."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    tags: str | None
    keys: tuple[str, ...]
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    properties: dict[str, str]
    body: bytes


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a search may read before it stops."""

    found: int = 50
    scanned: int = 20_000
    scanned_bytes: int = 64 * 1024 * 1024
    seconds: float = 5.0


class SearchFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a search looks for. All given conditions must hold."""

    from_ms: int | None = None
    """Stored at this time or later."""
    to_ms: int | None = None
    """Stored before this time."""
    tag: str | None = None
    key: str | None = None
    text: str | None = None
    """A part of the body, as UTF-8."""
    broker: str | None = None
    queue_id: int | None = None

    def is_match(self, message: StoredMessage) -> bool:
        """Return whether the message has the tag, the key and the text, and is within the times."""
        return (
            (self.from_ms is None or message.store_ms >= self.from_ms)
            and (self.to_ms is None or message.store_ms < self.to_ms)
            and (self.tag is None or message.tags == self.tag)
            and (self.key is None or self.key in message.keys or self.key == message.unique_key)
            and (self.text is None or self.text.encode(errors="replace") in message.body)
        )


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found, and how much it has read."""

    messages: tuple[MessageView, ...]
    scanned: int
    """Messages that were read."""
    scanned_bytes: int
    complete: bool
    """Whether everything was read; otherwise `next` continues."""
    next: dict[str, int] | None
    """`broker/queue id` to the offset where the search continues."""


async def find_message(admin: Admin, message_id: str, *, topic: str | None = None) -> MessageView:
    """Return the message with an id; raise `NotFound` if there is none. A unique id needs the topic."""
    if topic is not None:
        await admin.session.route(topic)  # raises `UnknownTopic`, which says more
    try:
        message = await admin.find_by_id(message_id, topic=topic)
        return view_message(message, await _broker_of(admin, message))
    except Unavailable:
        raise
    except SparrowError as cause:
        where = f"topic {topic!r} has none, or no longer" if topic is not None else str(cause)
        raise NotFound("message", message_id, where) from cause


async def find_by_key(
    admin: Admin, topic: str, key: str, *, limit: int = 50, from_ms: int | None = None, to_ms: int | None = None
) -> list[MessageView]:
    """Return the newest messages with a key or unique id, the newest first."""
    found = await admin.find_by_key(
        topic,
        key,
        limit=min(limit, KEY_MATCHES_MAX),
        begin_ms=from_ms or 0,
        end_ms=(1 << 63) - 1 if to_ms is None else to_ms,
    )
    return [view_message(message, await _broker_of(admin, message)) for message in reversed(found)]


async def search_messages(
    admin: Admin,
    topic: str,
    wanted: SearchFilter = SearchFilter(),  # noqa: B008  (frozen)
    *,
    order: SearchOrder = "newest",
    limits: SearchLimits = SearchLimits(),  # noqa: B008  (frozen)
    after: dict[str, int] | None = None,
) -> SearchResult:
    """Search a topic in the order of store time; `after` is the `next` of an earlier result."""
    deadline_s = time.monotonic() + limits.seconds
    readers = await _open_readers(admin, topic, wanted, order, after)
    sign = 1 if order == "oldest" else -1
    budget = _Budget(limits, deadline_s)
    heads: list[tuple[int, int, int]] = []

    async def push(number: int) -> None:
        message = await readers[number].peek(budget)
        if message is not None:
            heapq.heappush(heads, (sign * message.store_ms, sign * message.queue_offset, number))

    for number in range(len(readers)):
        await push(number)
    found: list[MessageView] = []
    while heads and len(found) < limits.found and not budget.is_spent:
        _, _, number = heapq.heappop(heads)
        reader = readers[number]
        message = reader.take()
        budget.count(message)
        if wanted.is_match(message):
            found.append(view_message(message, reader.queue.broker_name))
        await push(number)
    complete = not heads and all(reader.is_finished for reader in readers)
    positions = {f"{reader.queue.broker_name}/{reader.queue.queue_id}": reader.position for reader in readers}
    return SearchResult(
        messages=tuple(found),
        scanned=budget.scanned,
        scanned_bytes=budget.scanned_bytes,
        complete=complete,
        next=None if complete else positions,
    )


async def scan_messages(
    admin: Admin, topic: str, wanted: SearchFilter, *, order: SearchOrder = "oldest"
) -> AsyncIterator[tuple[StoredMessage, str]]:
    """Yield every message of a topic that is stored now and matches, with the name of its broker; queue after queue."""
    for reader in await _open_readers(admin, topic, wanted, order, None):
        while await reader.peek(None) is not None:
            message = reader.take()
            if wanted.is_match(message):
                yield message, reader.queue.broker_name


def view_message(message: StoredMessage, broker: str | None) -> MessageView:
    """Return a message with its ids and hosts as text."""
    offset_id = format_offset_id(message.store_host, message.physical_offset)
    return MessageView(
        id=message.unique_key or offset_id,
        offset_id=offset_id,
        topic=message.topic,
        broker=broker,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        tags=message.tags,
        keys=tuple(message.keys),
        born_ms=message.born_ms,
        born_host=_host(message.born_host),
        store_ms=message.store_ms,
        store_host=_host(message.store_host),
        reconsume_times=message.reconsume_times,
        properties=message.properties,
        body=bytes(message.body),
    )


async def _broker_of(admin: Admin, message: StoredMessage) -> str | None:
    """Return the broker that holds a message, by the address in its record; None if none has it."""
    try:
        route = await admin.session.route(message.topic)
    except SparrowError:
        return None
    if len(route.addresses) == 1:
        return next(iter(route.addresses))
    stored_at = _host(message.store_host)
    return next((name for name, members in route.addresses.items() if stored_at in members.values()), None)


def _host(host: Host) -> str:
    ip = ip_address(host.ip)
    return f"[{ip}]:{host.port}" if host.is_ipv6 else f"{ip}:{host.port}"


class _Budget:
    def __init__(self, limits: SearchLimits, deadline_s: float) -> None:
        self._limits, self._deadline_s = limits, deadline_s
        self.scanned = self.scanned_bytes = 0

    def count(self, message: StoredMessage) -> None:
        self.scanned += 1
        self.scanned_bytes += len(message.body)

    @property
    def is_spent(self) -> bool:
        limits = self._limits
        return (
            self.scanned >= limits.scanned
            or self.scanned_bytes >= limits.scanned_bytes
            or time.monotonic() >= self._deadline_s
        )


class _QueueReader:
    """Reads a queue in either direction, a block of messages at a time.

    `position` is the next offset to read when reading forward, and the offset after it when reading backward.
    """

    def __init__(self, session: ClientSession, queue: QueueRef, position: int, stop: int, *, is_forward: bool) -> None:
        self._session, self.queue, self.position, self._stop = session, queue, position, stop
        self._is_forward = is_forward
        self._block: list[StoredMessage] = []
        self._subscription = Subscription.of(queue.topic, version_ms=clock.now_ms())

    @property
    def is_finished(self) -> bool:
        return not self._block and (self.position >= self._stop if self._is_forward else self.position <= self._stop)

    async def peek(self, budget: _Budget | None) -> StoredMessage | None:
        """Return the next message; None at the end, or when the budget is spent."""
        while not self._block and not self.is_finished and not (budget is not None and budget.is_spent):
            await self._fetch()
        return self._block[-1] if self._block else None

    def take(self) -> StoredMessage:
        message = self._block.pop()
        self.position = message.queue_offset + 1 if self._is_forward else message.queue_offset
        return message

    async def _fetch(self) -> None:
        """Pull a block; it is kept so that the next message is its last."""
        if self._is_forward:
            begin, end = self.position, self._stop
        else:
            begin, end = max(self._stop, self.position - PULL_MESSAGES_DEFAULT), self.position
        answer = await self._pull(begin, PULL_MESSAGES_DEFAULT)
        if answer.status is PullStatus.FOUND:
            block = [each for each in record.decode_all(answer.records) if begin <= each.queue_offset < end]
            missing_end = block[-1].queue_offset + 1 if block else answer.next_offset
            if not self._is_forward and missing_end < end:
                # The response was cut by its size: read the rest of the block first, from where it was cut.
                block = [*block, *await self._rest(missing_end, end)]
            if block:
                self._block = block[::-1] if self._is_forward else block
                return
        if self._is_forward:
            self.position = answer.next_offset if answer.next_offset > begin else self._stop
        else:
            self.position = begin

    async def _pull(self, begin: int, count: int) -> PullResult:
        return await pull(
            self._session,
            self.queue,
            begin,
            group=TOOLS_GROUP,
            subscription=self._subscription,
            count_max=count,
            includes_subscription=True,
        )

    async def _rest(self, begin: int, end: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while begin < end:
            answer = await self._pull(begin, end - begin)
            if answer.status is not PullStatus.FOUND:
                break
            block = [each for each in record.decode_all(answer.records) if each.queue_offset < end]
            if not block:
                break
            found += block
            begin = block[-1].queue_offset + 1
        return found


async def _open_readers(
    admin: Admin, topic: str, wanted: SearchFilter, order: SearchOrder, after: dict[str, int] | None
) -> list[_QueueReader]:
    route = await admin.route(topic)
    bounds = await fetch_queue_bounds(admin.session, [topic], without_absent=True)
    queues = [
        queue
        for queue in route.read_queues
        if queue in bounds and wanted.broker in (None, queue.broker_name) and wanted.queue_id in (None, queue.queue_id)
    ]
    if not queues:
        raise Refused(f"topic {topic!r} has no queue {wanted.queue_id} on {wanted.broker or 'any broker'}")

    async def open_one(queue: QueueRef) -> _QueueReader:
        first, end = bounds[queue].first, bounds[queue].end
        if first < end:
            first, end = (
                first if wanted.from_ms is None else max(first, await admin.offset_at(queue, wanted.from_ms)),
                end if wanted.to_ms is None else min(end, await admin.offset_at(queue, wanted.to_ms)),
            )
        start = (after or {}).get(f"{queue.broker_name}/{queue.queue_id}")
        if order == "oldest":
            position = first if start is None else min(max(first, start), end)
            return _QueueReader(admin.session, queue, position, end, is_forward=True)
        position = end if start is None else max(min(end, start), first)
        return _QueueReader(admin.session, queue, max(position, first), first, is_forward=False)

    return await gather_all(map(open_one, queues))
