"""Sends messages.

    async with Producer("127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"..."))

1. What `send` returns is stored: on which broker and where, says the result. How safe, says its status.
2. A message is sent again, on another broker first, when a broker fails; its unique id stays, so consumers can tell.
3. Never more than `unsent_bytes_max` is on its way: `send` waits for room, `send_soon` raises `Busy`.
4. With `linger_ms` messages wait for each other and share requests: a hundred thousand and more a second.
5. A message may arrive later, be taken back until then, wait for a transaction's end, or ask for a reply.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce import request_reply
from sparrow.client.aio.produce.accumulator import Accumulator
from sparrow.client.aio.produce.direct_send import send_once
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_batch import OpenBatches, SendFuture, send_results
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.queue_assignment import QueueAssigner
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.aio.produce.transactions import ProducerTransactions, TransactionChecker, validate_transaction_state
from sparrow.client.aio.tracer import Tracer, trace_producer_group
from sparrow.client.delayed_delivery import RecallHandle, with_delivery_time
from sparrow.client.queue_selection import QueueSelector, by_sharding_key
from sparrow.client.request_reply import make_reply
from sparrow.model.errors import Busy, Closed, Refused, Unavailable
from sparrow.model.message import AnyMessage, StoredMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult, TransactionState
from sparrow.model.token import Credentials
from sparrow.model.topic import validate_group_name
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import RecallMessage, RecallMessageResponse, UnregisterClient
from sparrow.wire.record import TRANSACTION_PREPARED

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of a body, and of a batch: what RocketMQ's clients and brokers allow unless told otherwise."""

_ALONE_COST_BYTES = 1024
_GATHERED_COST_BYTES = 256
"""What a message on its way costs besides its body, about."""

T = TypeVar("T")


class Producer:
    def __init__(
        self,
        name_servers: str = "127.0.0.1:9876",
        *,
        group: str = "sparrow_producer",
        timeout_ms: int = 3_000,
        retries: int = 2,
        linger_ms: float | None = None,
        batch_bytes_max: int = 256 * 1024,
        batch_count_max: int = 1024,
        unsent_bytes_max: int = 64 * 1024 * 1024,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        default_topic_queues: int = 4,
        compress_above_bytes: int | None = 4096,
        selector: QueueSelector | None = None,
        transaction_checker: TransactionChecker | None = None,
        trace: bool = False,
        idempotent: bool = False,
        credentials: Credentials | None = None,
        session: ClientSession | None = None,
    ) -> None:
        """`timeout_ms` is for all attempts of a send together. `default_topic_queues`: how many a topic gets that the
        first
        message creates. `transaction_checker` tells a broker that asks what became of a transaction; brokers ask any
        producer of the group, so give it one of its own. `trace`: note every send in the trace topic. `idempotent`: a
        send that is tried again is stored once; so it is tried again on the same queue only, one message a request.
        `credentials` sign every request, for brokers that want to know who asks. `session`: share another client's
        connections, and the credentials they have; it is then not ours to close."""
        if idempotent and linger_ms is not None:
            raise Refused("messages that are stored once are sent one by one: leave out linger_ms, or idempotent")
        self.group, self.timeout_ms = validate_group_name(group), timeout_ms
        self.session = session or ClientSession(name_servers, timeout_ms=timeout_ms, credentials=credentials)
        self._owns_session = session is None
        # A repeat is known only to the broker that has the first: whoever chooses a queue stays with it.
        self._selector = selector or (by_sharding_key() if idempotent else None)
        self._by_sharding_key = by_sharding_key()
        self._is_idempotent = idempotent
        self._sender = Sender(self.session, group=group, retries=retries, default_topic_queues=default_topic_queues)
        self._encoder = MessageEncoder(
            self.session.unique_ids,
            compress_above_bytes=compress_above_bytes,
            message_bytes_max=message_bytes_max,
            producer_id=secrets.token_hex(12).upper() if idempotent else None,
        )
        self._budget = MemoryBudget(unsent_bytes_max)
        self._gathering = (
            OpenBatches(linger_s=linger_ms / 1000, bytes_max=batch_bytes_max, count_max=batch_count_max)
            if linger_ms is not None
            else None
        )
        self._cost_bytes = _ALONE_COST_BYTES if linger_ms is None else _GATHERED_COST_BYTES
        self._accumulator: Accumulator | None = None
        self._choosing: QueueAssigner | None = None
        self._transactions = ProducerTransactions(self.session, self.group, transaction_checker)
        self._traces = trace
        self._tracer: Tracer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._is_open = False

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            return
        await self.session.open()
        self.session.producers.add(self.group)
        self.session.on_routes_changed.append(self._introduce)
        self._transactions.open()
        self.session.handlers.update(request_reply.HANDLERS)
        if self.session.broker_addresses(masters_only=True):  # of a session that others use: they have not named us
            self._introduce("")
        if self._traces:
            self._tracer = Tracer(
                self.session, self.group, Producer(group=trace_producer_group(self.group), session=self.session)
            )
            self._transactions.ended = self._tracer.transaction_ended
            await self._tracer.open()
        if self._gathering is not None:
            self._accumulator = Accumulator(
                self._sender, self._encoder, self._budget, self._gathering, timeout_ms=self.timeout_ms
            )
            self._choosing = QueueAssigner(self._sender, self._accumulator, self._budget, self._spawn)
        self._is_open = True

    async def close(self) -> None:
        """Sends what still lingers, takes leave of the brokers, and hangs up."""
        if not self._is_open:
            return
        self._is_open = False
        await self.flush()
        if self._tracer is not None:
            await self._tracer.close()
        if self._beating is not None:
            await asyncio.wait([self._beating])
        self._transactions.close()
        self.session.on_routes_changed.remove(self._introduce)
        self.session.producers.discard(self.group)
        header = UnregisterClient(self.session.client_id, producer_group=self.group)
        addresses = [
            address
            for address in self.session.broker_addresses(masters_only=True)
            if self.session.cached_channel(address) is not None
        ]
        await asyncio.gather(
            *(self.session.invoke(address, RequestCode.UNREGISTER_CLIENT, header) for address in addresses),
            return_exceptions=True,  # who cannot be told will miss our heartbeats
        )
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _introduce(self, _topic: str) -> None:
        """A broker that has just come into a route hears of us now, not half a minute later."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self.session.heartbeat())

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after_ms: int | None = None,
        delay_level: int | None = None,
    ) -> SendResult:
        """Stored when this returns. A message for one queue, given or selected, is tried only there.

        Consumers get it at once, or `deliver_at` a time (a datetime, or ms since 1970), `deliver_after_ms`, or after
        the time of a `delay_level`, 1 (1 s) to 18 (2 h), which RocketMQ 4 knows too.
        """
        self._check_open()
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        cost = len(message.body) + self._cost_bytes
        if not self._budget.try_acquire(cost):
            await self._budget.acquire(cost)
        if self._accumulator is not None:
            return await self._gather(self._accumulator, message, cost, queue, selector, timeout_ms)
        try:
            return await self._send_alone(message, queue, selector, timeout_ms)
        finally:
            self._budget.release(cost)

    def send_soon(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after_ms: int | None = None,
        delay_level: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """The cheap road for many: a plain function, and a future of what `send` returns.

        `Busy` when too much is on its way already: wait for an earlier future, or `flush`, then go on.
        """
        if not self._is_open:
            raise Closed("the producer")
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        cost = len(message.body) + self._cost_bytes
        if not self._budget.try_acquire(cost):
            raise Busy(f"{self._budget.used_bytes} bytes of messages are unsent; {self._budget.bytes_max} are allowed")
        if self._accumulator is not None:
            return self._gather(self._accumulator, message, cost, queue, selector, timeout_ms)
        task = self._spawn(self._send_alone(message, queue, selector, timeout_ms))
        task.add_done_callback(lambda _: self._budget.release(cost))
        return task

    async def send_batch(
        self, messages: Sequence[AnyMessage], *, queue: QueueRef | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """All messages, of one topic, in one request to one queue: stored together, one after the other, or not."""
        self._check_open()
        self._check_one_by_one()
        payload, ids = self._encoder.batch_payload(messages)
        begun = time.monotonic()
        cost = len(payload.body) + _ALONE_COST_BYTES
        await self._budget.acquire(cost)
        try:
            delivery = await self._sender.send(
                messages[0].topic, payload, queue=queue, timeout_ms=timeout_ms or self.timeout_ms
            )
        finally:
            self._budget.release(cost)
        results = send_results(delivery, ids)
        if self._tracer is not None:
            for message, result in zip(messages, results, strict=True):
                self._tracer.published(message, result.message_id, begun, result)
        return results

    async def send_one_way(
        self, message: AnyMessage, *, queue: QueueRef | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Handed to the connection when this returns. Nobody will say whether it arrived."""
        self._check_open()
        body, properties, _ = self._encoder.encode(message)
        payload = await self._encoder.single_payload(message, body, properties)
        target = queue or await self._selected(message, selector)
        await self._sender.send_one_way(message.topic, payload, queue=target, timeout_ms=self.timeout_ms)

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        body: str = "body",
        keys: str | None = "keys",
        tags: str | None = "tags",
        properties: str | None = "properties",
        queue: QueueRef | None = None,
        in_flight: int = 4,
        timeout_ms: int | None = None,
    ) -> int:
        """Every row of an Arrow table, a record batch or a pandas frame as a message, without a loop over rows; how
        many there were. Names are those of columns: `body` must be there, the others may be missing.

        Batches go to the queues in turn, `in_flight` at a time, so rows keep their order only within a batch; for one
        `queue` they follow each other and rows keep theirs. Rows get no unique id. `PartlySent` when a batch fails.
        """
        from sparrow.client.aio.produce import (
            table_sender,  # loads NumPy and Arrow, which a plain producer does without
        )

        self._check_open()
        self._check_one_by_one()
        columns = table_sender.message_columns(table, body=body, keys=keys, tags=tags, properties=properties)
        return await table_sender.send_table(
            self._sender,
            self._budget,
            topic,
            columns,
            queue=queue,
            in_flight=in_flight,
            timeout_ms=timeout_ms or self.timeout_ms,
        )

    def _check_one_by_one(self) -> None:
        if self._is_idempotent:
            raise Refused("messages that are stored once are sent one by one: use another producer for batches")

    # -- taking back --------------------------------------------------------------------------------------------------

    async def recall(self, sent: SendResult | str) -> str:
        """Take back a message for later, by the result of its send or by the handle in it; its id is the answer.

        `Refused` when it is too late. Only messages with a time of their own can be taken back, not those of a level.
        """
        self._check_open()
        handle = sent.recall_handle if isinstance(sent, SendResult) else sent
        if handle is None:
            raise Refused("this message has no handle to take it back by: it was not sent for later, or by a level")
        found = RecallHandle.parse(handle)
        address = (await self._sender.route(found.topic)).masters.get(found.broker_name)
        if address is None:
            raise Unavailable(f"broker {found.broker_name!r} of topic {found.topic!r} has no master just now")
        answer = await self.session.invoke(
            address, RequestCode.RECALL_MESSAGE, RecallMessage(found.topic, handle, self.group)
        )
        return headers.read(RecallMessageResponse, answer.ext).message_id

    # -- transactions -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> AsyncIterator[SendResult]:
        """Delivered when the block ends well, and never when it raises.

        ```python
        async with producer.transaction(Message("orders", body)):
            await database.execute(...)
        ```
        """
        sent = await self.begin_transaction(message, queue=queue)
        try:
            yield sent
        except BaseException:
            await self._transactions.roll_back(sent)
            raise
        await self.end_transaction(sent, TransactionState.COMMIT)

    async def send_in_transaction(
        self, message: AnyMessage, work: Callable[[AnyMessage], Any], *, queue: QueueRef | None = None
    ) -> SendResult:
        """The same with a function, plain or async. It returns an `TransactionState`, or nothing, which commits;
        raising rolls
        back. `TransactionState.UNKNOWN` leaves it to the transaction listener, which the broker asks later."""
        sent = await self.begin_transaction(message, queue=queue)
        try:
            said = work(message)
            said = await said if inspect.isawaitable(said) else said
            outcome = TransactionState.COMMIT if said is None else validate_transaction_state(said)
        except BaseException:
            await self._transactions.roll_back(sent)
            raise
        await self.end_transaction(sent, outcome)
        return sent

    async def begin_transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> SendResult:
        """Store a message out of sight. Whoever begins must end, if only as `TransactionState.UNKNOWN`."""
        self._check_open()
        half = self._transactions.begin(message)
        try:
            return await self._send_charged(half, queue, None, None, is_half=True)
        except BaseException:
            self._transactions.give_up(half)
            raise

    async def end_transaction(self, sent: SendResult, outcome: TransactionState) -> None:
        """Deliver it, or drop it. A broker that cannot be reached asks later, and is told then."""
        await self._transactions.end(sent, outcome)

    # -- requests and replies -----------------------------------------------------------------------------------------

    async def request(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message and wait for what some consumer replies. `RequestTimeout` when nobody does in time."""
        self._check_open()
        patience_ms = timeout_ms or self.timeout_ms

        async def send(asked: AnyMessage) -> None:
            # The reply may come by any broker of the topic: each must have heard of us before there is one.
            await self._sender.route(asked.topic)
            if self._beating is not None:
                await asyncio.shield(self._beating)
            await self._send_charged(asked, queue, selector, patience_ms)

        return await request_reply.send_request(self.session, message, send, timeout_ms=patience_ms)

    async def reply(self, request: StoredMessage, body: bytes | str, *, timeout_ms: int | None = None) -> SendResult:
        """Answer a request. It has reached whoever asked when this returns; it is kept in the reply topic, too."""
        self._check_open()
        message = make_reply(request, body)
        packed, properties, message_id = self._encoder.encode(message)
        payload = await self._encoder.single_payload(message, packed, properties)
        queue = request_reply.reply_queue(await self._sender.route(message.topic), request)
        delivery = await send_once(
            self.session,
            queue,
            payload,
            group=self.group,
            code=RequestCode.SEND_REPLY_MESSAGE_V2,
            timeout_ms=timeout_ms or self.timeout_ms,
        )
        return send_results(delivery, [message_id])[0]

    async def flush(self) -> None:
        """Returns once everything sent so far is stored, or has failed: its futures say which."""
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks)
        if self._accumulator is not None:
            await self._accumulator.flush()

    # -- one message --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the producer")

    async def _send_charged(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool = False,
    ) -> SendResult:
        """In a request of its own also where others are gathered, and within the budget."""
        cost = len(message.body) + _ALONE_COST_BYTES
        await self._budget.acquire(cost)
        try:
            return await self._send_alone(message, queue, selector, timeout_ms, is_half=is_half)
        finally:
            self._budget.release(cost)

    async def _send_alone(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool = False,
    ) -> SendResult:
        body, properties, message_id = self._encoder.encode(message)
        payload = await self._encoder.single_payload(message, body, properties)
        if is_half:
            payload = payload._replace(sys_flag=payload.sys_flag | TRANSACTION_PREPARED)
        target = queue or await self._selected(message, selector)
        begun = time.monotonic()
        result = None
        try:
            delivery = await self._sender.send(
                message.topic, payload, queue=target, timeout_ms=timeout_ms or self.timeout_ms
            )
            result = send_results(delivery, [message_id])[0]
            return result
        finally:
            if self._tracer is not None:
                self._tracer.published(message, message_id, begun, result)

    def _selector_for(self, message: AnyMessage, selector: QueueSelector | None) -> QueueSelector | None:
        selector = selector or self._selector
        if selector is None and message.properties and PROPERTY_SHARDING_KEY in message.properties:
            return self._by_sharding_key
        return selector

    async def _selected(self, message: AnyMessage, selector: QueueSelector | None) -> QueueRef | None:
        """The queue a selector wants; None when any will do."""
        selector = self._selector_for(message, selector)
        return None if selector is None else selector((await self._sender.route(message.topic)).write_queues, message)

    def _gather(
        self,
        accumulator: Accumulator,
        message: AnyMessage,
        cost: int,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
    ) -> SendFuture:
        try:
            if queue is None:
                # Asked here too, for the many messages that have neither properties nor a selector.
                if message.properties or selector is not None or self._selector is not None:
                    selector = self._selector_for(message, selector)
                if selector is not None:
                    assert self._choosing is not None
                    return self._followed(message, self._choosing.add(message, selector, cost, timeout_ms))
            sending = accumulator.add(message, queue, cost, timeout_ms)
            return sending if self._tracer is None else self._followed(message, sending)
        except BaseException:
            self._budget.release(cost)
            raise

    def _followed(self, message: AnyMessage, sending: SendFuture) -> SendFuture:
        if self._tracer is not None:
            self._tracer.follow(message, sending)
        return sending

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
