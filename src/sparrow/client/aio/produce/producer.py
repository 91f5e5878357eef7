"""The asyncio producer.

    async with Producer("127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"..."))

1. A message is stored when `send` returns; the result says where, and its status how safely.
2. When a broker fails, the message is sent again, to another broker first. Its unique id stays the same, so consumers
   can detect the duplicate.
3. At most `unsent_bytes_max` is unacknowledged at a time: `send` waits for memory, `send_soon` raises `Busy`.
4. With `linger_ms`, messages are sent in batches: more than a hundred thousand a second.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar, Unpack, cast
from weakref import finalize

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce import request_reply
from sparrow.client.aio.produce.batches.batch_sender import BatchSender
from sparrow.client.aio.produce.batches.message_batch import OpenBatches, SendFuture, send_results
from sparrow.client.aio.produce.bulk.bulk_producer import BulkProducer
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.recall import recall_message
from sparrow.client.aio.produce.registration import ProducerRegistration
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.aio.produce.single_sender import MESSAGE_COST_BYTES, SingleSender
from sparrow.client.aio.produce.transactions import ProducerTransactions
from sparrow.client.aio.produce.unsent_report import report_when_forgotten
from sparrow.client.aio.tracer import Tracer, trace_producer_group
from sparrow.client.message_spans import ended_by_block, start_batch_span
from sparrow.client.options import DEFAULT_PRODUCER_GROUP, PRODUCER_DEFAULTS, ProducerOptions, complete_options
from sparrow.client.produce.delayed_delivery import with_delivery_time
from sparrow.client.produce.queue_selection import QueueSelector, by_sharding_key
from sparrow.client.produce.send_log import SendLog
from sparrow.model.errors import Busy, Refused
from sparrow.model.message import AnyMessage, StoredMessage, body_length
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult
from sparrow.model.topic import validate_group_name
from sparrow.model.transaction import TransactionState

_BATCHED_COST_BYTES = 256
"""Approximate memory of a message in a batch, besides its body."""

T = TypeVar("T")


class Producer(BulkProducer):
    """Sends messages."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        session: ClientSession | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Create a producer; `ProducerOptions` describes the options.

        `session`: use the connections and credentials of another client, which then has to close them.
        """
        chosen = complete_options("Producer", options, PRODUCER_DEFAULTS, ProducerOptions)
        idempotent, linger_ms = chosen["idempotent"], chosen["linger_ms"]
        if idempotent and linger_ms is not None:
            raise Refused("an idempotent producer sends no batches: leave out linger_ms, or idempotent")
        self.group, self.timeout_ms = validate_group_name(group), chosen["timeout_ms"]
        self.session = session or ClientSession(
            name_servers, timeout_ms=self.timeout_ms, credentials=chosen["credentials"], tls=chosen["tls"]
        )
        self._owns_session = session is None
        self._is_idempotent = idempotent
        self._registration = ProducerRegistration(self.session, self.group)
        send_log, queues = SendLog(chosen["send_log_level"]), chosen["default_topic_queues"]
        self._sender = Sender(
            self.session, group=group, retries=chosen["retries"], default_topic_queues=queues, send_log=send_log
        )
        self._encoder = MessageEncoder(
            self.session.unique_ids,
            compress_above_bytes=chosen["compress_above_bytes"],
            message_bytes_max=chosen["message_bytes_max"],
            producer_id=secrets.token_hex(12).upper() if idempotent else None,
        )
        self._budget = MemoryBudget(chosen["unsent_bytes_max"])
        # Only the broker that stored the first attempt detects a duplicate, so an idempotent send stays on one queue.
        selector = chosen["selector"] or (by_sharding_key() if idempotent else None)
        self._single = SingleSender(self._sender, self._encoder, self._budget, selector, timeout_ms=self.timeout_ms)
        self._open_batches = (
            OpenBatches(
                linger_s=linger_ms / 1000,
                bytes_max=chosen["batch_bytes_max"],
                count_max=chosen["batch_count_max"],
                id_bytes=self._encoder.id_bytes,
            )
            if linger_ms is not None
            else None
        )
        self._cost_bytes = MESSAGE_COST_BYTES if linger_ms is None else _BATCHED_COST_BYTES
        self._batches: BatchSender | None = None
        self._transactions = ProducerTransactions(self.session, self.group, chosen["transaction_checker"])
        self._traces = chosen["trace"]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = False
        self.reports_unsent = True
        """Whether messages that are lost because the producer is never closed are reported on stderr."""
        self._unsent_report: finalize[..., Any] | None = None

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the session and register the group. `async with` does it."""
        if self._is_open:
            return
        await self.session.open()
        self._transactions.open()
        self.session.handlers.update(request_reply.HANDLERS)
        self._registration.open()
        if self._traces:
            tracer = Tracer(
                self.session, self.group, Producer(group=trace_producer_group(self.group), session=self.session)
            )
            self._single.tracer = tracer
            self._transactions.ended = tracer.transaction_ended
            await tracer.open()
        if self._open_batches is not None:
            self._batches = BatchSender(
                self._sender,
                self._encoder,
                self._budget,
                self._single,
                self._open_batches,
                timeout_ms=self.timeout_ms,
                spawn=self._spawn,
            )
        if self.reports_unsent:
            self._unsent_report = report_when_forgotten(self, self._budget, self._batches, self._tasks)
        self._is_open = True

    async def close(self) -> None:
        """Send what still lingers, unregister from the brokers, and close the connections."""
        if not self._is_open:
            return
        self._is_open = False
        await self.flush()
        if self._unsent_report is not None:
            self._unsent_report.detach()
        if self._single.tracer is not None:
            await self._single.tracer.close()
        await self._registration.wait_for_heartbeat()
        self._transactions.close()
        await self._registration.close()
        if self._owns_session:
            await self.session.close()

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
        """Send a message; it is stored when this returns.

        `queue`, `selector`: send to this queue, or to the one that the function chooses, and retry only there.
        `deliver_at` (a datetime, or ms since 1970), `deliver_after_ms` or `delay_level` (1 is 1 s, 18 is 2 h; all that
        RocketMQ 4 supports) delays the delivery.
        """
        self._check_open()
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        cost = body_length(message) + self._cost_bytes
        if not self._budget.try_acquire(cost):
            await self._budget.acquire(cost)
        if self._batches is not None:
            return await self._batches.send(message, queue, selector, timeout_ms, cost=cost)
        try:
            return await self._single.send(message, queue, selector, timeout_ms)
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
        """Start to send a message, and return a future of what `send` returns. It is the cheapest way to send many.

        Raises `Busy` when the memory budget is used up: await an earlier future, or `flush`, and try again.
        """
        if not self._is_open:
            self._check_open()
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        cost = body_length(message) + self._cost_bytes
        if not self._budget.try_acquire(cost):
            raise Busy(f"{self._budget.used_bytes} bytes of messages are unsent; {self._budget.bytes_max} are allowed")
        if self._batches is not None:
            return self._batches.send(message, queue, selector, timeout_ms, cost=cost)
        task = self._spawn(self._single.send(message, queue, selector, timeout_ms))
        task.add_done_callback(lambda done: self._budget.release(cost, is_lost=done.cancelled()))
        return task

    async def send_batch(
        self, messages: Sequence[AnyMessage], *, queue: QueueRef | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue. All are stored, next to each other, or none."""
        self._check_open()
        self._check_batches_allowed()
        messages, span = start_batch_span(messages)
        begun = time.monotonic()
        with ended_by_block(span):
            payload, ids = self._encoder.batch_payload(messages)
            cost = len(payload.body) + MESSAGE_COST_BYTES
            await self._budget.acquire(cost)
            try:
                outcome = await self._sender.send(
                    messages[0].topic, payload, queue=queue, timeout_ms=timeout_ms or self.timeout_ms
                )
            finally:
                self._budget.release(cost)
        results = send_results(outcome, ids)
        if self._single.tracer is not None:
            for message, result in zip(messages, results, strict=True):
                self._single.tracer.published(message, result.message_id, begun, result)
        return results

    async def send_one_way(
        self, message: AnyMessage, *, queue: QueueRef | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Write a message to the connection; the broker does not acknowledge it."""
        self._check_open()
        await self._single.send_one_way(message, queue, selector)

    async def flush(self) -> None:
        """Wait until every message sent so far is stored or has failed; the futures hold the results."""
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks)
        if self._batches is not None:
            await self._batches.accumulator.flush()

    async def recall(self, sent: SendResult | str) -> str:
        """Cancel a delayed message, by the result of its send or its recall handle, and return the message id.

        Raises `Refused` when the message is delivered already. Messages delayed by a level cannot be recalled.
        """
        self._check_open()
        return await recall_message(self.session, self._sender, sent, group=self.group)

    # -- transactions -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> AsyncIterator[SendResult]:
        """Deliver the message when the block completes, and never when it raises.

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
        """Send a message in a transaction around `work`, a function or coroutine function.

        `work` returns a `TransactionState`, or None to commit; an exception rolls back. After
        `TransactionState.UNKNOWN` the broker asks the `transaction_checker`.
        """
        sent = await self.begin_transaction(message, queue=queue)
        await self._transactions.run(sent, work, message)
        return sent

    async def begin_transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> SendResult:
        """Store a half message, which consumers do not see. Call `end_transaction` afterwards in every case."""
        self._check_open()
        half = self._transactions.begin(message)
        try:
            return await self._single.send_within_budget(half, queue, None, None, is_half=True)
        except BaseException:
            self._transactions.give_up(half)
            raise

    async def end_transaction(self, sent: SendResult, state: TransactionState) -> None:
        """Commit or roll back a half message. A broker that cannot be reached checks back later."""
        await self._transactions.end(sent, state)

    # -- requests and replies -----------------------------------------------------------------------------------------

    async def request(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message and wait for the reply of a consumer; raises `RequestTimeout` without one."""
        self._check_open()
        reply_timeout_ms = timeout_ms or self.timeout_ms

        async def send(asked: AnyMessage) -> None:
            # Any broker of the topic may push the reply, so each must have got our heartbeat before.
            await self._sender.route(asked.topic)
            await self._registration.wait_for_heartbeat()
            await self._single.send_within_budget(asked, queue, selector, reply_timeout_ms)

        return await request_reply.send_request(self.session, message, send, timeout_ms=reply_timeout_ms)

    async def reply(self, request: StoredMessage, body: bytes | str, *, timeout_ms: int | None = None) -> SendResult:
        """Reply to a request. The requester has the reply when this returns; the reply topic stores it, too."""
        self._check_open()
        timeout_ms = timeout_ms or self.timeout_ms
        return await request_reply.send_reply(
            self.session, self._sender, self._encoder, request, body, group=self.group, timeout_ms=timeout_ms
        )

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def add_to_batch(
    producer: Producer,
    message: AnyMessage,
    queue: QueueRef | None,
    selector: QueueSelector | None,
    timeout_ms: int | None,
    future: Future[SendResult],
) -> bool:
    """Send a message as `send_soon` does, with a future of another thread, for the blocking client.

    Return False if the producer does not linger, or no memory is free: nothing is sent then.
    """
    batches, budget = producer._batches, producer._budget
    if batches is None:
        return False
    producer._check_open()
    cost = body_length(message) + producer._cost_bytes
    if not budget.try_acquire(cost):
        return False
    batches.send(message, queue, selector, timeout_ms, cost=cost, future=cast(SendFuture, future))
    return True
