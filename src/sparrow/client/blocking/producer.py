"""Sends messages, for programs without an event loop. `sparrow.client.aio.produce.producer` says what is promised."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from sparrow.client import aio
from sparrow.client.aio.produce.producer import MESSAGE_BYTES_MAX
from sparrow.client.aio.produce.transactions import validate_transaction_state
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.delayed_delivery import with_delivery_time
from sparrow.client.queue_selection import QueueSelector
from sparrow.model.errors import Busy, Closed, SparrowError
from sparrow.model.message import AnyMessage, StoredMessage
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult, TransactionState
from sparrow.model.token import Credentials

log = logging.getLogger(__name__)

BlockingTransactionChecker = Callable[[StoredMessage], TransactionState]
"""Finds out what became of the work a half message was sent for."""

HANDOVER_BYTES_MAX = 8 * 1024 * 1024
"""What may wait for the loop to take it: a sender that is faster waits too."""
_COST_BYTES = 512
HANDOVER_COUNT_MAX = 256
"""Messages handed over before the loop may look at its sockets again: senders may never pause."""


class _Soon(NamedTuple):
    message: AnyMessage
    queue: QueueRef | None
    selector: QueueSelector | None
    timeout_ms: int | None
    future: Future[SendResult]


class Producer(BlockingClient[aio.Producer]):
    """Sends messages. Any number of threads may share one.

    ```python
    with Producer("127.0.0.1:9876") as producer:
        result = producer.send(Message("orders", b"a book"))
        print(result.queue_id, result.queue_offset)
    ```
    """

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
        transaction_checker: BlockingTransactionChecker | None = None,
        trace: bool = False,
        idempotent: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """`timeout_ms` is for all attempts of a send together. With `linger_ms`, messages wait so long for each other
        and share requests: for many threads, or with `send_soon`. `transaction_checker` tells a broker that asks what
        became of a transaction; it is called in a thread of its own. `trace`: note every send in the trace topic."""
        client = aio.Producer(
            name_servers,
            group=group,
            timeout_ms=timeout_ms,
            retries=retries,
            linger_ms=linger_ms,
            batch_bytes_max=batch_bytes_max,
            batch_count_max=batch_count_max,
            unsent_bytes_max=unsent_bytes_max,
            message_bytes_max=message_bytes_max,
            default_topic_queues=default_topic_queues,
            compress_above_bytes=compress_above_bytes,
            selector=selector,
            transaction_checker=run_in_thread(transaction_checker) if transaction_checker is not None else None,
            trace=trace,
            idempotent=idempotent,
            credentials=credentials,
        )
        super().__init__(client, what="the producer")
        self.group = client.group
        self._soon: deque[_Soon] = deque()
        self._soon_bytes = 0
        self._has_room = threading.Condition(threading.Lock())
        self._is_passing_on = False
        self._passing_on: asyncio.Task[None] | None = None

    def send(
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
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        return self._run(self._client.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

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
    ) -> Future[SendResult]:
        """Returns at once, with a future of what `send` returns. Waits only while too much is on its way.

        ```python
        futures = [producer.send_soon(Message("orders", body)) for body in bodies]
        results = [future.result() for future in futures]
        ```
        """
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        loop = self._opened()
        future: Future[SendResult] = Future()
        with self._has_room:
            # A future's callback runs on the loop, which must not wait for itself.
            while self._soon_bytes > HANDOVER_BYTES_MAX and not loop.is_current:
                self._has_room.wait()
            self._soon.append(_Soon(message, queue, selector, timeout_ms, future))
            self._soon_bytes += len(message.body) + _COST_BYTES
            if self._is_passing_on:
                return future
            self._is_passing_on = True
        loop.call_soon(self._pass_on_soon)
        return future

    def send_batch(
        self, messages: Sequence[AnyMessage], *, queue: QueueRef | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """All messages, of one topic, in one request to one queue: stored together, one after the other, or not."""
        return self._run(self._client.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_one_way(
        self, message: AnyMessage, *, queue: QueueRef | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Handed to the connection when this returns. Nobody will say whether it arrived."""
        self._run(self._client.send_one_way(message, queue=queue, selector=selector))

    def send_table(
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
        """Every row of an Arrow table, a record batch or a pandas frame as a message; how many there were."""
        return self._run(
            self._client.send_table(
                topic,
                table,
                body=body,
                keys=keys,
                tags=tags,
                properties=properties,
                queue=queue,
                in_flight=in_flight,
                timeout_ms=timeout_ms,
            )
        )

    # -- taking back, transactions, requests --------------------------------------------------------------------------

    def recall(self, sent: SendResult | str) -> str:
        """Take back a message for later, by the result of its send or by the handle in it; its id is the answer."""
        return self._run(self._client.recall(sent))

    @contextmanager
    def transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> Iterator[SendResult]:
        """Delivered when the block ends well, and never when it raises.

        ```python
        with producer.transaction(Message("orders", body)):
            database.execute(...)
        ```
        """
        sent = self.begin_transaction(message, queue=queue)
        try:
            yield sent
        except BaseException:
            self._roll_back(sent)
            raise
        self.end_transaction(sent, TransactionState.COMMIT)

    def send_in_transaction(
        self, message: AnyMessage, work: Callable[[AnyMessage], Any], *, queue: QueueRef | None = None
    ) -> SendResult:
        """The same with a function, called here. It returns an `TransactionState`, or nothing, which commits; raising
        rolls
        back. `TransactionState.UNKNOWN` leaves it to the transaction listener, which the broker asks later."""
        sent = self.begin_transaction(message, queue=queue)
        try:
            said = work(message)
            outcome = TransactionState.COMMIT if said is None else validate_transaction_state(said)
        except BaseException:
            self._roll_back(sent)
            raise
        self.end_transaction(sent, outcome)
        return sent

    def begin_transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> SendResult:
        """Store a message out of sight. Whoever begins must end, if only as `TransactionState.UNKNOWN`."""
        return self._run(self._client.begin_transaction(message, queue=queue))

    def end_transaction(self, sent: SendResult, outcome: TransactionState) -> None:
        """Deliver it, or drop it. A broker that cannot be reached asks later, and is told then."""
        self._run(self._client.end_transaction(sent, outcome))

    def _roll_back(self, sent: SendResult) -> None:
        """Because something was raised: what goes wrong here must not take its place."""
        try:
            self.end_transaction(sent, TransactionState.ROLLBACK)
        except SparrowError as error:
            log.warning("a transaction was not rolled back", extra={"message_id": sent.message_id, "why": str(error)})

    def request(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message and wait for what some consumer replies. `RequestTimeout` when nobody does in time."""
        return self._run(self._client.request(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

    def reply(self, request: StoredMessage, body: bytes | str, *, timeout_ms: int | None = None) -> SendResult:
        """Answer a request. It has reached whoever asked when this returns; it is kept in the reply topic, too."""
        return self._run(self._client.reply(request, body, timeout_ms=timeout_ms))

    def flush(self) -> None:
        """Returns once everything sent so far is stored, or has failed: its futures say which."""
        self._run(self._flush())

    def close(self) -> None:
        """Sends what is still on its way, takes leave of the brokers, and hangs up."""
        self._close(self._flush_and_close())

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        if self._passing_on is not None:
            await self._passing_on
        await self._client.flush()

    async def _flush_and_close(self) -> None:
        await self._flush()
        await self._client.close()

    def _pass_on_soon(self) -> None:
        self._passing_on = asyncio.get_running_loop().create_task(self._pass_on())

    async def _pass_on(self) -> None:
        """Hands over what came in, in its order, until nothing is left. One task however many messages."""
        while True:
            with self._has_room:
                if not self._soon:
                    self._is_passing_on = False
                    return
                taken, self._soon = self._soon, deque()
                self._soon_bytes = 0
                self._has_room.notify_all()
            for number, soon in enumerate(taken, start=1):
                if soon.future.set_running_or_notify_cancel():
                    await self._hand_over(soon)
                if number % HANDOVER_COUNT_MAX == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _hand_over(self, soon: _Soon) -> None:
        message, queue, selector, timeout_ms, future = soon
        try:
            sending = self._client.send_soon(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        except Busy:
            # `send` waits for its turn; what is behind this message waits with it.
            sending = asyncio.ensure_future(
                self._client.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
            )
            await asyncio.wait([sending])
        except Exception as error:
            future.set_exception(error)
            return
        sending.add_done_callback(lambda done: _settle(future, done))


def run_in_thread(listener: BlockingTransactionChecker) -> Callable[[StoredMessage], Awaitable[TransactionState]]:
    """It may look into a database: the loop goes on meanwhile."""
    return lambda message: asyncio.to_thread(listener, message)


def _settle(future: Future[SendResult], done: asyncio.Future[SendResult]) -> None:
    if done.cancelled():
        future.set_exception(Closed("the producer"))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
