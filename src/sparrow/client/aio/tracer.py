"""The tracer: sends trace records in batches, in the background, without delaying or failing a user's call.

Records that cannot be sent, or that arrive too fast, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol
from uuid import uuid4

from sparrow import clock
from sparrow.client import trace_records
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.consume import retry
from sparrow.client.trace_records import (
    ConsumeEndTrace,
    ConsumeReturnType,
    ConsumeStartTrace,
    PublishTrace,
    TracedMessageType,
    TraceRecord,
    TransactionEndTrace,
)
from sparrow.model.message import AnyMessage, Message, StoredMessage
from sparrow.model.protocol import (
    DEFAULT_REGION,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_REGION,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    TRACE_TOPIC,
)
from sparrow.model.send_result import SendResult
from sparrow.model.topic import GROUP_NAME_CHARS_MAX
from sparrow.model.transaction import TransactionState

log = logging.getLogger(__name__)

TRACE_LINGER_S = 0.2
"""How long a record waits for others."""
PENDING_TRACES_MAX = 10_000
BATCH_TRACES_MAX = 100
BATCH_KEYS_BYTES_MAX = 8 * 1024
"""The properties of a message are limited to 32 KB, and keys come from users."""
CLOSE_TIMEOUT_S = 2.0
"""How long closing waits for the last records to be sent."""


class TraceProducer(Protocol):
    """What the tracer needs of a producer."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def send(self, message: AnyMessage) -> SendResult: ...


def trace_producer_group(group: str) -> str:
    """Return the producer group that sends the traces of a group."""
    return f"_INNER_TRACE_PRODUCER-{group}"[:GROUP_NAME_CHARS_MAX]


class Tracer:
    """Records what one producer or consumer does."""

    def __init__(
        self, session: ClientSession, group: str, producer: TraceProducer, *, topic: str = TRACE_TOPIC
    ) -> None:
        self._session, self._group, self._producer, self._topic = session, group, producer, topic
        self._waiting: deque[TraceRecord] = deque()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    async def open(self) -> None:
        """Start to send records."""
        await self._producer.open()
        self._task = asyncio.create_task(self._keep_sending(), name=f"trace {self._group}")

    async def close(self) -> None:
        """Send what is left, for a limited time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._send_all()
        except TimeoutError:
            self._drop(len(self._waiting), "closed")
        await self._producer.close()

    # -- recording ----------------------------------------------------------------------------------------------------

    def published(self, message: AnyMessage, message_id: str, begun: float, result: SendResult | None) -> None:
        """Record a send that has ended; without a result it failed. `begun` is from `time.monotonic`."""
        if result is not None and not result.is_traced:
            return
        cost_ms = int((time.monotonic() - begun) * 1000)
        self._note(
            PublishTrace(
                time_ms=clock.now_ms() - cost_ms,
                region=(result.region if result is not None else None) or DEFAULT_REGION,
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.properties.get(PROPERTY_TAGS, ""),
                keys=message.properties.get(PROPERTY_KEYS, ""),
                store_host=self._host_of(message.topic, result.broker_name if result is not None else ""),
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                kind=_kind_of(message),
                offset_id=result.offset_id if result is not None else "",
                is_success=result is not None,
            )
        )

    def follow(self, message: AnyMessage, sending: asyncio.Future[SendResult]) -> None:
        """Record a send when its future is done."""
        begun = time.monotonic()

        def over(done: asyncio.Future[SendResult]) -> None:
            result = None if done.cancelled() or done.exception() is not None else done.result()
            message_id = result.message_id if result is not None else message.unique_key
            if message_id is not None:
                self.published(message, message_id, begun, result)

        sending.add_done_callback(over)

    def transaction_ended(
        self, message: AnyMessage, broker_name: str, outcome: TransactionState, from_check: bool
    ) -> None:
        """Record the end of a transaction."""
        message_id = message.unique_key or ""
        self._note(
            TransactionEndTrace(
                time_ms=clock.now_ms(),
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.properties.get(PROPERTY_TAGS, ""),
                keys=message.properties.get(PROPERTY_KEYS, ""),
                store_host=self._host_of(message.topic, broker_name),
                transaction_id=message_id,
                state=outcome.value,
                from_check=from_check,
            )
        )

    def around(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """Return the handler with a record before and after."""

        async def traced(given: Any) -> object:
            messages = [
                message
                for message in ((given,) if isinstance(given, StoredMessage) else given)
                if message.properties.get(PROPERTY_TRACE_SWITCH) != "false"
            ]
            request_id = uuid4().hex.upper()
            self._consume_begun(request_id, messages)
            begun = time.monotonic()
            code = ConsumeReturnType.RAISED
            try:
                said = await handler(given)
                code = ConsumeReturnType.SUCCESS
                return said
            except Exception as error:
                if retry.is_handler_decision(error):
                    code = ConsumeReturnType.FAILED
                raise
            finally:
                self._consume_ended(request_id, messages, begun, code)

        return traced

    def _consume_begun(self, request_id: str, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            self._note(
                ConsumeStartTrace(
                    time_ms=clock.now_ms(),
                    region=message.properties.get(PROPERTY_REGION, DEFAULT_REGION),
                    group=self._group,
                    request_id=request_id,
                    message_id=message.unique_key or "",
                    retries=message.reconsume_times,
                    keys=message.properties.get(PROPERTY_KEYS, ""),
                )
            )

    def _consume_ended(
        self, request_id: str, messages: list[StoredMessage], begun: float, code: ConsumeReturnType
    ) -> None:
        cost_ms = int((time.monotonic() - begun) * 1000) // max(len(messages), 1)
        for message in messages:
            self._note(
                ConsumeEndTrace(
                    request_id=request_id,
                    message_id=message.unique_key or "",
                    cost_ms=cost_ms,
                    is_success=code is ConsumeReturnType.SUCCESS,
                    keys=message.properties.get(PROPERTY_KEYS, ""),
                    code=code,
                    time_ms=clock.now_ms(),
                    group=self._group,
                )
            )

    def _host_of(self, topic: str, broker_name: str) -> str:
        route = self._session.cached_route(topic, for_sends=True)
        return route.masters.get(broker_name, "") if route is not None else ""

    def _note(self, note: TraceRecord) -> None:
        if len(self._waiting) >= PENDING_TRACES_MAX:
            self.dropped += 1
            return
        self._waiting.append(note)
        self._some.set()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _keep_sending(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(TRACE_LINGER_S)
            self._some.clear()
            await self._send_all()

    async def _send_all(self) -> None:
        while self._waiting:
            notes = self._batch()
            keys = " ".join(trace_records.trace_keys(notes))
            try:
                await self._producer.send(Message(self._topic, trace_records.encode(notes), keys=keys))
            except Exception as error:  # an error must not stop later records
                self._drop(len(notes), repr(error))

    def _batch(self) -> list[TraceRecord]:
        """Return the next records, at least one."""
        notes: list[TraceRecord] = []
        keys_bytes = 0
        while self._waiting and len(notes) < BATCH_TRACES_MAX:
            note = self._waiting[0]
            keys_bytes += len(note.keys.encode()) + len(note.message_id) + 2
            if notes and keys_bytes > BATCH_KEYS_BYTES_MAX:
                break
            notes.append(self._waiting.popleft())
        return notes

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        log.info(
            "%(count)d traces of group %(group)s dropped: %(error)s",
            {"group": self._group, "count": count, "error": why},
        )


def _kind_of(message: AnyMessage) -> TracedMessageType:
    properties = message.properties
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return TracedMessageType.HALF
    is_delayed = any(
        name in properties
        for name in (PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_S)
    )
    return TracedMessageType.DELAYED if is_delayed else TracedMessageType.NORMAL
