"""Taking messages for a time (pop): any number of consumers on any number of queues, and nobody owns a queue.

A message that is not acknowledged before its time is over comes again, to whoever asks next. Needs a broker that knows
pop: Sparrow's, or RocketMQ's since 5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Self

import msgspec

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import EXPRESSION_TAG, PROPERTY_POP_CHECKPOINT, SUBSCRIBE_ALL
from sparrow.model.token import Credentials
from sparrow.model.topic import validate_group_name
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies import Ack, BatchAck, encode_bitset
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import ChangeInvisibleTime, ChangeInvisibleTimeResponse, PopMessage, PopMessageResponse

POP_COUNT_MAX = 32
"""What a broker hands out at once."""
_ALL_QUEUES, _FROM_OLDEST = -1, 0
_TURN_MS = 1_000
"""With several brokers, how long one of them is waited for before the next."""
_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND})
_LATE_MS = 15_000
_ACK_SPAN = 512
"""Acknowledgements of one request start at one offset, and reach so far behind it."""


class PopReceipt(msgspec.Struct, frozen=True):
    """A message, ours for a while, and what acknowledges it."""

    message: StoredMessage
    broker_name: str
    handle: str
    """`start popTime invisibleTime reviveQueue retry brokerName queueId offset`"""

    @property
    def fields(self) -> list[str]:
        return self.handle.split(" ")


class PopConsumer:
    """
    ```python
    async with PopConsumer("billing") as consumer:
        for receipt in await consumer.receive("orders"):
            print(receipt.message.body)
            await consumer.ack(receipt)
    ```
    """

    def __init__(
        self,
        group: str,
        name_servers: str = "127.0.0.1:9876",
        *,
        invisible_ms: int = 60_000,
        timeout_ms: int = 3_000,
        credentials: Credentials | None = None,
        session: ClientSession | None = None,
    ) -> None:
        """`invisible_ms`: how long a message is ours."""
        self.group, self._invisible_ms = validate_group_name(group), invisible_ms
        self.session = session or ClientSession(name_servers, timeout_ms=timeout_ms, credentials=credentials)
        self._owns_session = session is None
        self._turn = count()

    async def open(self) -> None:
        await self.session.open()

    async def close(self) -> None:
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def receive(
        self,
        topic: str,
        *,
        count_max: int = POP_COUNT_MAX,
        wait_ms: int = 15_000,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = EXPRESSION_TAG,
        in_order: bool = False,
    ) -> list[PopReceipt]:
        """Some messages, or none when the time is up.

        `in_order`: a queue gives no more until what was taken of it is acknowledged.
        """
        if not 1 <= count_max <= POP_COUNT_MAX:
            raise Refused(f"a broker hands out 1 to {POP_COUNT_MAX} messages at once, not {count_max}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        route = await self.session.route(topic)
        names = sorted(route.masters)
        if not names:
            raise Unavailable(f"no broker of topic {topic!r} is there")
        first = next(self._turn)
        asked = 0
        while True:
            name = names[(first + asked) % len(names)]
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            # Each broker once without waiting; then they are waited for in turn.
            poll_ms = 0 if asked < len(names) - 1 else left_ms if len(names) == 1 else min(left_ms, _TURN_MS)
            header = PopMessage(
                group=self.group,
                topic=topic,
                queue_id=_ALL_QUEUES,
                messages_max=count_max,
                invisible_ms=self._invisible_ms,
                poll_ms=poll_ms,
                born_ms=clock.now_ms(),
                init_mode=_FROM_OLDEST,
                expression_type=expression_type,
                expression=expression,
                in_order=in_order,
                broker_name=name,
            )
            try:
                receipts = await self._pop(route.masters[name], name, header)
            except Unavailable:
                await self.session.refresh([topic])  # another may be in its place by now, for whoever asks next
                raise
            asked += 1
            if receipts or (asked >= len(names) and loop.time() >= deadline):
                return receipts

    async def _pop(self, address: str, broker_name: str, header: PopMessage) -> list[PopReceipt]:
        answer = await self.session.invoke_unchecked(
            address, RequestCode.POP_MESSAGE, header, timeout_ms=header.poll_ms + _LATE_MS
        )
        if answer.code in _NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_response(answer.code, answer.remark)
        popped = headers.read(PopMessageResponse, answer.ext)
        starts = _starts(popped.start_offsets or "")
        return [
            PopReceipt(message, broker_name, _handle(message, popped, starts, broker_name))
            for message in record.decode_all(answer.body)
        ]

    async def ack(self, receipts: PopReceipt | Iterable[PopReceipt]) -> None:
        """Dealt with. One request for each broker; what had come back to the broker already is named by an error."""
        by_broker: dict[str, list[PopReceipt]] = {}
        for receipt in [receipts] if isinstance(receipts, PopReceipt) else receipts:
            by_broker.setdefault(receipt.broker_name, []).append(receipt)
        for broker_name, some in by_broker.items():
            body = bodies.write(BatchAck(broker_name, _acks(self.group, some)))
            await self.session.invoke(
                self._address(some[0]), RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), body
            )

    async def change_invisible_time(self, receipt: PopReceipt, invisible_ms: int) -> PopReceipt:
        """Ours for so much longer, or (0) to come again at once. The old receipt counts no more."""
        fields = receipt.fields
        header = ChangeInvisibleTime(
            self.group,
            _topic_of(receipt, self.group),
            int(fields[6]),
            receipt.handle,
            int(fields[7]),
            invisible_ms,
            receipt.broker_name,
        )
        answer = await self.session.invoke(self._address(receipt), RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = headers.read(ChangeInvisibleTimeResponse, answer.ext)
        fields[1:4] = [str(changed.pop_ms), str(changed.invisible_ms), str(changed.revive_queue)]
        # A message that is moved stands for itself: its handle starts at its own offset.
        fields[0] = fields[7]
        return PopReceipt(receipt.message, receipt.broker_name, " ".join(fields))

    def _address(self, receipt: PopReceipt) -> str:
        route = self.session.cached_route(receipt.message.topic)
        address = route.masters.get(receipt.broker_name) if route is not None else None
        if address is None:
            raise Unavailable(f"no route leads to broker {receipt.broker_name!r}")
        return address


def _starts(said: str) -> dict[tuple[str, str], str]:
    """(retry, queue) to where the pop's handles of that queue start."""
    found = {}
    for entry in filter(None, said.split(";")):
        retry, queue_id, start = entry.split(" ")
        found[retry, queue_id] = start
    return found


def _handle(
    message: StoredMessage, popped: PopMessageResponse, starts: dict[tuple[str, str], str], broker_name: str
) -> str:
    given = message.properties.get(PROPERTY_POP_CHECKPOINT)
    if given is not None:  # of a message that comes again: only the broker knows where it lies
        return given
    queue_id = str(message.queue_id)
    start = starts.get(("0", queue_id), str(message.queue_offset))
    when = f"{popped.pop_ms} {popped.invisible_ms} {popped.revive_queue}"
    return f"{start} {when} 0 {broker_name} {queue_id} {message.queue_offset}"


def _topic_of(receipt: PopReceipt, group: str) -> str:
    is_retried = receipt.fields[4] != "0"
    return f"%RETRY%{group}_{receipt.message.topic}" if is_retried else receipt.message.topic


def _acks(group: str, receipts: list[PopReceipt]) -> list[Ack]:
    """Those of one pop and queue together, as bits behind the offset they start at."""
    lots: dict[tuple[str, ...], list[int]] = {}
    for receipt in receipts:
        start, pop_ms, invisible_ms, revive, retry, _, queue_id, offset = receipt.fields
        place = int(offset) - int(start)
        if not 0 <= place < _ACK_SPAN:
            raise SparrowError(f"the handle {receipt.handle!r} is not one that a pop has given out")
        topic = receipt.message.topic
        lots.setdefault((start, pop_ms, invisible_ms, revive, retry, queue_id, topic), []).append(place)
    return [
        Ack(
            group=group,
            topic=topic,
            retry=retry,
            start_offset=int(start),
            queue_id=int(queue_id),
            revive_queue=int(revive),
            pop_ms=int(pop_ms),
            invisible_ms=int(invisible_ms),
            bits=encode_bitset(places),
        )
        for (start, pop_ms, invisible_ms, revive, retry, queue_id, topic), places in lots.items()
    ]
