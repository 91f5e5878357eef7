"""Sends traces, in batches and behind the scenes: nothing here makes a user's call wait or fail.

What cannot be sent, or comes faster than it can be, is dropped and counted.
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
from sparrow.client import retry, trace_records
from sparrow.client.aio.connection.session import Session
from sparrow.client.trace_records import (
    DEFAULT_REGION,
    TRACE_TOPIC,
    ConsumeBegun,
    Consumed,
    ConsumeEnded,
    Kind,
    Published,
    Trace,
    TransactionEnded,
)
from sparrow.model.message import KEYS, TAGS, Message, StoredMessage
from sparrow.model.send_result import Outcome, SendResult
from sparrow.model.topic import GROUP_NAME_MAX

log = logging.getLogger(__name__)

GATHER_S = 0.2
"""How long a trace waits for others."""
WAITING_MAX = 10_000
BATCH_COUNT = 100
BATCH_KEYS_BYTES = 8 * 1024
"""A message's properties have 32 KB, and keys are the users'."""
LAST_SEND_S = 2.0
"""What is left when a client is closed gets so long."""


class Sends(Protocol):
    """A producer, as far as traces need one."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def send(self, message: Message) -> SendResult: ...


def trace_group(group: str) -> str:
    return f"_INNER_TRACE_PRODUCER-{group}"[:GROUP_NAME_MAX]


class Tracer:
    """Takes notes for one producer or consumer."""

    def __init__(self, session: Session, group: str, producer: Sends, *, topic: str = TRACE_TOPIC) -> None:
        self._session, self._group, self._producer, self._topic = session, group, producer, topic
        self._waiting: deque[Trace] = deque()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    async def open(self) -> None:
        await self._producer.open()
        self._task = asyncio.create_task(self._keep_sending(), name=f"trace {self._group}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(LAST_SEND_S):
                await self._send_all()
        except TimeoutError:
            self._drop(len(self._waiting), "closed")
        await self._producer.close()

    # -- notes --------------------------------------------------------------------------------------------------------

    def published(self, message: Message, message_id: str, begun: float, result: SendResult | None) -> None:
        """A send is over. `begun`: by `time.monotonic`. Without a result it failed."""
        if result is not None and not result.is_traced:
            return
        cost_ms = int((time.monotonic() - begun) * 1000)
        self._note(
            Published(
                time_ms=clock.now_ms() - cost_ms,
                region=(result.region if result is not None else None) or DEFAULT_REGION,
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.properties.get(TAGS, ""),
                keys=message.properties.get(KEYS, ""),
                store_host=self._host_of(message.topic, result.broker_name if result is not None else ""),
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                kind=_kind_of(message),
                offset_id=result.offset_id if result is not None else "",
                is_success=result is not None,
            )
        )

    def follow(self, message: Message, sending: asyncio.Future[SendResult]) -> None:
        """The same for a send that is on its way."""
        begun = time.monotonic()

        def over(done: asyncio.Future[SendResult]) -> None:
            result = None if done.cancelled() or done.exception() is not None else done.result()
            message_id = result.message_id if result is not None else message.unique_key
            if message_id is not None:
                self.published(message, message_id, begun, result)

        sending.add_done_callback(over)

    def transaction_ended(self, message: Message, broker_name: str, outcome: Outcome, from_check: bool) -> None:
        message_id = message.unique_key or ""
        self._note(
            TransactionEnded(
                time_ms=clock.now_ms(),
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.properties.get(TAGS, ""),
                keys=message.properties.get(KEYS, ""),
                store_host=self._host_of(message.topic, broker_name),
                transaction_id=message_id,
                state=outcome.value,
                from_check=from_check,
            )
        )

    def around(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """The handler, with a note before and after."""

        async def traced(given: Any) -> object:
            messages = [
                message
                for message in (given if isinstance(given, list) else (given,))
                if message.properties.get("TRACE_ON") != "false"
            ]
            request_id = uuid4().hex.upper()
            self._consume_begun(request_id, messages)
            begun = time.monotonic()
            code = Consumed.RAISED
            try:
                said = await handler(given)
                code = Consumed.SUCCESS
                return said
            except Exception as error:
                if retry.is_a_choice(error):
                    code = Consumed.FAILED
                raise
            finally:
                self._consume_ended(request_id, messages, begun, code)

        return traced

    def _consume_begun(self, request_id: str, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            self._note(
                ConsumeBegun(
                    time_ms=clock.now_ms(),
                    region=message.properties.get("MSG_REGION", DEFAULT_REGION),
                    group=self._group,
                    request_id=request_id,
                    message_id=message.unique_key or "",
                    retries=message.reconsume_times,
                    keys=message.properties.get(KEYS, ""),
                )
            )

    def _consume_ended(self, request_id: str, messages: list[StoredMessage], begun: float, code: Consumed) -> None:
        cost_ms = int((time.monotonic() - begun) * 1000) // max(len(messages), 1)
        for message in messages:
            self._note(
                ConsumeEnded(
                    request_id=request_id,
                    message_id=message.unique_key or "",
                    cost_ms=cost_ms,
                    is_success=code is Consumed.SUCCESS,
                    keys=message.properties.get(KEYS, ""),
                    code=code,
                    time_ms=clock.now_ms(),
                    group=self._group,
                )
            )

    def _host_of(self, topic: str, broker_name: str) -> str:
        route = self._session.route_now(topic, for_sends=True)
        return route.masters.get(broker_name, "") if route is not None else ""

    def _note(self, note: Trace) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(note)
        self._some.set()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _keep_sending(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            self._some.clear()
            await self._send_all()

    async def _send_all(self) -> None:
        while self._waiting:
            notes = self._batch()
            words = " ".join(trace_records.keys_of(notes))
            try:
                await self._producer.send(Message.of(self._topic, trace_records.encode(notes), keys=words))
            except Exception as error:  # whatever it is, the next ones go on
                self._drop(len(notes), repr(error))

    def _batch(self) -> list[Trace]:
        """At least one."""
        notes: list[Trace] = []
        keys_bytes = 0
        while self._waiting and len(notes) < BATCH_COUNT:
            note = self._waiting[0]
            keys_bytes += len(note.keys.encode()) + len(note.message_id) + 2
            if notes and keys_bytes > BATCH_KEYS_BYTES:
                break
            notes.append(self._waiting.popleft())
        return notes

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        log.info("traces dropped", extra={"group": self._group, "count": count, "why": why})


def _kind_of(message: Message) -> Kind:
    words = message.properties
    if words.get("TRAN_MSG") == "true":
        return Kind.HALF
    is_delayed = any(name in words for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"))
    return Kind.DELAYED if is_delayed else Kind.NORMAL
