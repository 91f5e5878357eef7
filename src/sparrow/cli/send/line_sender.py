"""Sending the messages of a source: a bounded number at a time, with a result for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from sparrow.cli.send.source import SourceLine
from sparrow.client.aio.produce.producer import Producer
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.send_result import SendResult
from sparrow.operations.message_lines import MessageLine

IN_FLIGHT_MAX = 1_024
"""Messages that wait for their acknowledgement at the same time."""


class SentLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one line of the input."""

    line: int
    is_sent: bool
    message_id: str | None = None
    topic: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    status: str | None = None
    recall_handle: str | None = None
    """Recalls a delayed message until it is due."""
    error: str | None = None


class SendTotals:
    """How many messages were sent and how many failed, in which time."""

    def __init__(self) -> None:
        self.sent = self.failed = 0
        self.first_error: SparrowError | None = None
        self._started_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the first message."""
        return time.monotonic() - self._started_s

    def count(self, line: SentLine, error: SparrowError | None) -> None:
        """Count a line that was sent, or could not be."""
        self.sent += line.is_sent
        self.failed += not line.is_sent
        self.first_error = self.first_error or error

    def __str__(self) -> str:
        rate = self.sent / self.seconds if self.seconds else 0.0
        failures = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.sent:,} messages sent in {self.seconds:.1f} s ({rate:,.0f} per second){failures}"


async def send_lines(
    producer: Producer,
    topic: str,
    lines: AsyncIterator[SourceLine],
    defaults: MessageLine,
    *,
    keeps_going: bool,
    on_result: Callable[[SentLine, SourceLine], None],
) -> SendTotals:
    """Send every line, and report each in the order in which its result arrives.

    Unless `keeps_going`, no line is begun after the first one that failed; those in flight are still reported.
    """
    totals = SendTotals()
    waiting: set[asyncio.Task[None]] = set()

    async def send_one(line: SourceLine) -> None:
        error: SparrowError | None = None
        try:
            result = _sent(line.number, await _send(producer, topic, line, defaults))
        except SparrowError as cause:
            error = cause
            result = SentLine(line.number, is_sent=False, error=str(cause))
        totals.count(result, error)
        on_result(result, line)

    async with aclosing(lines) as source:  # type: ignore[type-var]
        async for line in source:
            if totals.failed and not keeps_going:
                break
            task = asyncio.create_task(send_one(line))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            # The first one alone: if no broker answers, or the topic is refused, there is one error instead of many.
            if len(waiting) >= IN_FLIGHT_MAX or not totals.sent + totals.failed:
                await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
    if waiting:
        await asyncio.gather(*waiting)
    return totals


async def _send(producer: Producer, topic: str, line: SourceLine, defaults: MessageLine) -> SendResult:
    content = line.content
    if isinstance(content, Refused):
        raise content
    if isinstance(content, bytes):
        fields, body = defaults, content
    else:
        fields, body = content.with_defaults(defaults), content.body_bytes()
    return await producer.send(
        fields.message(topic, body), deliver_after_ms=fields.delay_ms, deliver_at=fields.deliver_at_ms
    )


def _sent(number: int, result: SendResult) -> SentLine:
    return SentLine(
        number,
        True,
        message_id=result.message_id,
        topic=result.topic,
        broker=result.broker_name,
        queue_id=result.queue_id,
        queue_offset=result.queue_offset,
        status=result.status.value,
        recall_handle=result.recall_handle,
    )
