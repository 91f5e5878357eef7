"""The asyncio pop consumer: receives messages for an invisible time, without owning queues.

Any number of consumers read any number of queues. A message that is not acknowledged within its invisible time is
delivered again, to any consumer of the group. Brokers must support pop: Sparrow's, or RocketMQ's since 5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Unpack

import msgspec

from sparrow import clock
from sparrow.client.aio.connection.leader_requests import invoke_leader, is_leader_change
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.connection.session_client import SessionClient
from sparrow.client.options import (
    POP_CONSUMER_DEFAULTS,
    PopConsumerOptions,
    complete_options,
)
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import NoMaster, Refused, SparrowError, Unavailable
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import EXPRESSION_TAG, PROPERTY_POP_CHECKPOINT, SUBSCRIBE_ALL
from sparrow.model.topic import validate_group_name
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies import Ack, BatchAck, encode_bitset
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import (
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Header,
    PopMessage,
    PopMessageResponse,
)

POP_COUNT_MAX = 32
"""The most messages that a broker returns at once."""
_ALL_QUEUES, _FROM_OLDEST = -1, 0
_TURN_MS = 1_000
"""With several brokers: how long one is polled before the next."""
_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND})
_LATE_MS = 15_000
_ACK_SPAN = 512
"""The number of offsets, from a start offset on, whose acknowledgements one request can carry as bits."""


class PopReceipt(msgspec.Struct, frozen=True):
    """A received message, and the handle that acknowledges it."""

    message: StoredMessage
    broker_name: str
    handle: str
    """`start popTime invisibleTime reviveQueue retry brokerName queueId offset`"""

    @property
    def fields(self) -> list[str]:
        """The parts of the handle."""
        return self.handle.split(" ")


class PopConsumer(SessionClient):
    """A consumer that receives messages for an invisible time and acknowledges each.

    ```python
    async with PopConsumer(group="billing") as consumer:
        for receipt in await consumer.receive("orders"):
            print(receipt.message.body)
            await consumer.ack(receipt)
    ```
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        group: str,
        session: ClientSession | None = None,
        **options: Unpack[PopConsumerOptions],
    ) -> None:
        """Create a consumer; `PopConsumerOptions` describes the options.

        `session`: use the connections and credentials of another client, which then has to close them.
        """
        chosen = complete_options("PopConsumer", options, POP_CONSUMER_DEFAULTS, PopConsumerOptions)
        self.group, self._invisible_ms = validate_group_name(group), chosen["invisible_ms"]
        self.session = session or ClientSession(
            name_servers, timeout_ms=chosen["timeout_ms"], credentials=chosen["credentials"], tls=chosen["tls"]
        )
        self._owns_session = session is None
        self._turn = count()

    async def close(self) -> None:
        """Close the connections, unless the session belongs to another client."""
        if self._owns_session:
            await self.session.close()

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
        """Receive some messages, or none when the time is up.

        `in_order`: a queue delivers no further message until the received ones are acknowledged.
        """
        if not 1 <= count_max <= POP_COUNT_MAX:
            raise Refused(f"count_max is {count_max}: a broker returns 1 to {POP_COUNT_MAX} messages at once")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        route = await self._route(topic)
        names = sorted(route.masters)
        first = next(self._turn)
        asked = 0
        while True:
            name = names[(first + asked) % len(names)]
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            # Each broker is asked once without waiting, then each is polled in turn.
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
            except Unavailable as error:
                await self.session.refresh([topic])
                fresh = self.session.cached_route(topic) or route
                if not is_leader_change(error) or fresh.masters.get(name) in (None, route.masters[name]):
                    raise
                route, names = fresh, sorted(fresh.masters)  # another replica leads
                continue
            asked += 1
            if receipts or (asked >= len(names) and loop.time() >= deadline):
                return receipts

    async def _route(self, topic: str) -> TopicRoute:
        route = await self.session.route(topic)
        if not route.masters:  # another replica may lead now
            route = await self.session.route(topic, is_fresh=True)
        if not route.masters:
            raise NoMaster(f"topic {topic!r} has no master broker now: try again, or start its broker")
        return route

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
        """Acknowledge messages, with one request for each broker; raise for those whose invisible time is over."""
        by_broker: dict[str, list[PopReceipt]] = {}
        for receipt in [receipts] if isinstance(receipts, PopReceipt) else receipts:
            by_broker.setdefault(receipt.broker_name, []).append(receipt)
        for broker_name, some in by_broker.items():
            body = bodies.write(BatchAck(broker_name, _acks(self.group, some)))
            await self._invoke(some[0], RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), body)

    async def change_invisible_time(self, receipt: PopReceipt, invisible_ms: int) -> PopReceipt:
        """Set how long a message stays invisible from now on; 0 makes it visible at once.

        Return the receipt that replaces the old one.
        """
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
        answer = await self._invoke(receipt, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = headers.read(ChangeInvisibleTimeResponse, answer.ext)
        fields[1:4] = [str(changed.pop_ms), str(changed.invisible_ms), str(changed.revive_queue)]
        # The new handle names one message only, so it starts at the offset of the message.
        fields[0] = fields[7]
        return PopReceipt(receipt.message, receipt.broker_name, " ".join(fields))

    async def _invoke(
        self, receipt: PopReceipt, code: RequestCode, header: Header, body: bytes = b""
    ) -> RemotingCommand:
        topic = receipt.message.topic
        return await invoke_leader(self.session, topic, receipt.broker_name, code, header, body)


def _starts(text: str) -> dict[tuple[str, str], str]:
    """Return the start offset of the handles, by (retry, queue id)."""
    found = {}
    for entry in filter(None, text.split(";")):
        retry, queue_id, start = entry.split(" ")
        found[retry, queue_id] = start
    return found


def _handle(
    message: StoredMessage, popped: PopMessageResponse, starts: dict[tuple[str, str], str], broker_name: str
) -> str:
    given = message.properties.get(PROPERTY_POP_CHECKPOINT)
    if given is not None:  # of a retried message, whose position only the broker knows
        return given
    queue_id = str(message.queue_id)
    start = starts.get(("0", queue_id), str(message.queue_offset))
    when = f"{popped.pop_ms} {popped.invisible_ms} {popped.revive_queue}"
    return f"{start} {when} 0 {broker_name} {queue_id} {message.queue_offset}"


def _topic_of(receipt: PopReceipt, group: str) -> str:
    is_retried = receipt.fields[4] != "0"
    return f"%RETRY%{group}_{receipt.message.topic}" if is_retried else receipt.message.topic


def _acks(group: str, receipts: list[PopReceipt]) -> list[Ack]:
    """Return the acknowledgements, those of one pop and queue together as bits that count from their start offset."""
    batches: dict[tuple[str, ...], list[int]] = {}
    for receipt in receipts:
        start, pop_ms, invisible_ms, revive, retry, _, queue_id, offset = receipt.fields
        position = int(offset) - int(start)
        if not 0 <= position < _ACK_SPAN:
            raise SparrowError(
                f"the receipt handle {receipt.handle!r} is not valid: use the receipt that receive returned"
            )
        topic = receipt.message.topic
        batches.setdefault((start, pop_ms, invisible_ms, revive, retry, queue_id, topic), []).append(position)
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
            bits=encode_bitset(positions),
        )
        for (start, pop_ms, invisible_ms, revive, retry, queue_id, topic), positions in batches.items()
    ]
