"""The blocking producer. `sparrow.client.aio.produce.producer` documents its guarantees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Unpack

from sparrow.client import aio
from sparrow.client.aio.produce.transactions import validate_transaction_state
from sparrow.client.blocking import exit_flush
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.blocking.handover import Handover
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.client.handler_checks import refuse_awaitable, require_plain_function
from sparrow.client.message_spans import with_current_context
from sparrow.client.options import (
    DEFAULT_PRODUCER_GROUP,
    ProducerOptions,
    TransactionChecker,
)
from sparrow.client.produce.delayed_delivery import with_delivery_time
from sparrow.client.produce.queue_selection import QueueSelector
from sparrow.model.errors import SparrowError
from sparrow.model.health import Health
from sparrow.model.message import AnyMessage, StoredMessage
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import BulkSendResult, SendResult
from sparrow.model.transaction import TransactionState

log = logging.getLogger(__name__)


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
        name_servers: str | None = None,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Create a producer; `ProducerOptions` describes the options."""
        checker = options.get("transaction_checker")
        if checker is not None:
            options["transaction_checker"] = run_in_thread(checker)
        client = aio.Producer(name_servers, group=group, **options)
        super().__init__(client, what="the producer")
        client.reports_unsent = False  # `exit_flush` does
        self.group = client.group
        self._handover = Handover(client)

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
        """Send a message; it is stored when this returns.

        `queue`, `selector`: send to this queue, or to the one that the function chooses, and retry only there.
        `deliver_at` (a datetime, or ms since 1970), `deliver_after_ms` or `delay_level` (1 is 1 s, 18 is 2 h; all that
        RocketMQ 4 supports) delays the delivery.
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
        """Start to send a message, and return a future of what `send` returns. Block only while too much is unsent.

        ```python
        futures = [producer.send_soon(Message("orders", body)) for body in bodies]
        results = [future.result() for future in futures]
        ```
        """
        if deliver_at is not None or deliver_after_ms is not None or delay_level is not None:
            message = with_delivery_time(
                message, deliver_at=deliver_at, deliver_after_ms=deliver_after_ms, delay_level=delay_level
            )
        message = with_current_context(message)  # the loop thread sends it in another context
        return self._handover.add(self._loop or self._opened(), message, queue, selector, timeout_ms)

    def send_batch(
        self, messages: Sequence[AnyMessage], *, queue: QueueRef | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue. All are stored, next to each other, or none."""
        return self._run(self._client.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_one_way(
        self, message: AnyMessage, *, queue: QueueRef | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Write a message to the connection; the broker does not acknowledge it."""
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
        """Send every row of an Arrow table, a record batch or a pandas frame as a message; return how many."""
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

    def send_many(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        keys: Iterable[str | None] | None = None,
        tags: Iterable[str | None] | str | None = None,
        properties: Iterable[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        sharding_keys: Iterable[str | None] | None = None,
        queue: QueueRef | None = None,
        in_flight: int = 4,
        timeout_ms: int | None = None,
    ) -> BulkSendResult:
        """Send a list of bodies, each as a message, in large batches; return where they are stored.

        The other lists have one item for each body; a single tag or mapping of properties is that of every message.
        Batches go to the queues in turn, `in_flight` at a time, so messages keep their order only within a batch. With
        a `queue` they keep it throughout, and with `sharding_keys` those of one key do. Messages get no unique id.
        Raises `PartialSend` when a batch fails.

        ```python
        print(producer.send_many("orders", [b"a book", b"a pen"], keys=["order-7", "order-8"]).count)
        ```
        """
        return self._run(
            self._client.send_many(
                topic,
                bodies,
                keys=keys,
                tags=tags,
                properties=properties,
                sharding_keys=sharding_keys,
                queue=queue,
                in_flight=in_flight,
                timeout_ms=timeout_ms,
            )
        )

    def health(self) -> Health:
        """Return what keeps the client from its work now; no finding while it does it."""
        return self._client.health()

    # -- taking back, transactions, requests --------------------------------------------------------------------------

    def recall(self, sent: SendResult | str) -> str:
        """Cancel a delayed message, by the result of its send or its recall handle, and return the message id."""
        return self._run(self._client.recall(sent))

    @contextmanager
    def transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> Iterator[SendResult]:
        """Deliver the message when the block completes, and never when it raises.

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
        """Send a message in a transaction around the function `work`.

        `work` returns a `TransactionState`, or None to commit; an exception rolls back. After
        `TransactionState.UNKNOWN` the broker asks the `transaction_checker`.
        """
        require_plain_function(work, "the work of the transaction")
        sent = self.begin_transaction(message, queue=queue)
        try:
            returned = work(message)
            refuse_awaitable(returned, "the work of the transaction")
            state = TransactionState.COMMIT if returned is None else validate_transaction_state(returned)
        except BaseException:
            self._roll_back(sent)
            raise
        self.end_transaction(sent, state)
        return sent

    def begin_transaction(self, message: AnyMessage, *, queue: QueueRef | None = None) -> SendResult:
        """Store a half message, which consumers do not see. Call `end_transaction` afterwards in every case."""
        return self._run(self._client.begin_transaction(message, queue=queue))

    def end_transaction(self, sent: SendResult, state: TransactionState) -> None:
        """Commit or roll back a half message. A broker that cannot be reached checks back later."""
        self._run(self._client.end_transaction(sent, state))

    def _roll_back(self, sent: SendResult) -> None:
        """Roll back after an exception, which an error of the rollback must not replace."""
        try:
            self.end_transaction(sent, TransactionState.ROLLBACK)
        except SparrowError as error:
            log.warning(
                "transaction %(message_id)s is not rolled back: %(error)s; the broker will check back",
                {"message_id": sent.message_id, "error": str(error)},
            )

    def request(
        self,
        message: AnyMessage,
        *,
        queue: QueueRef | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message and wait for the reply of a consumer; raises `RequestTimeout` without one."""
        return self._run(self._client.request(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

    def reply(self, request: StoredMessage, body: bytes | str, *, timeout_ms: int | None = None) -> SendResult:
        """Reply to a request. The requester has the reply when this returns; the reply topic stores it, too."""
        return self._run(self._client.reply(request, body, timeout_ms=timeout_ms))

    def flush(self) -> None:
        """Wait until every message sent so far is stored or has failed; the futures hold the results."""
        self._run(self._handover.flush())
        self._handover.failed = 0

    def close(self) -> None:
        """Send what is unsent, unregister from the brokers, and close the connections."""
        exit_flush.remove(self._flush_at_exit)
        self._close(self._handover.flush_and_close())

    def _flush_at_exit(self, timeout_s: float) -> tuple[int, str]:
        """Send what is unsent because the program ends; return how many messages are not stored, and why."""
        loop = self._loop
        if loop is None or not loop.is_of_this_process:
            return 0, ""
        why = ""
        try:
            loop.run(self._handover.flush(), timeout_s)
        except TimeoutError:
            why = f"no broker acknowledged them within {self._client.timeout_ms} ms"
        except SparrowError as error:
            why = str(error)
        return self._handover.unstored_count, why or str(self._handover.failure)

    def _opened(self) -> LoopThread:
        if self._loop is not None:
            return self._loop
        opened = super()._opened()
        exit_flush.add(self._flush_at_exit, self._client.timeout_ms)
        return opened


def run_in_thread(checker: TransactionChecker) -> TransactionChecker:
    """Return a checker that runs in a thread: it may query a database, and must not block the event loop."""
    require_plain_function(checker, "the transaction checker")

    async def check(message: StoredMessage) -> TransactionState:
        returned = await asyncio.to_thread(checker, message)
        refuse_awaitable(returned, "the transaction checker")
        return validate_transaction_state(returned)

    return check
