"""OpenTelemetry spans of producers and consumers, where the application has set a tracer provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparrow.client.produce.delayed_delivery import with_properties
from sparrow.model.message import AnyMessage
from sparrow.telemetry import spans
from sparrow.telemetry.spans import SendSpan, process_span


def start_send_span(message: AnyMessage) -> tuple[AnyMessage, SendSpan | None]:
    """Start the span of a send. Return the message with the context of the span; both as they are without a tracer."""
    tracer = spans.active_tracer()
    if tracer is None:
        return message, None
    span, added = tracer.start_send(message.topic, message.properties, len(message.body))
    return with_properties(message, added) if added else message, span


def start_batch_span(messages: Sequence[AnyMessage]) -> tuple[Sequence[AnyMessage], SendSpan | None]:
    """Start the span of a batch. Messages without a context get that of the span."""
    tracer = spans.active_tracer()
    if tracer is None or not messages:
        return messages, None
    span, added = tracer.start_batch_send(messages[0].topic, len(messages))
    return [each if spans.TRACE_PARENT in each.properties else with_properties(each, added) for each in messages], span


@contextmanager
def ended_by_block(span: SendSpan | None) -> Iterator[None]:
    """End a span with the block."""
    try:
        yield
    except BaseException as error:
        if span is not None:
            span.fail(error)
        raise
    if span is not None:
        span.end()


def with_current_context(message: AnyMessage) -> AnyMessage:
    """Return the message with the context of the calling thread, unless it has one."""
    tracer = spans.active_tracer()
    if tracer is None or spans.TRACE_PARENT in message.properties:
        return message
    added = tracer.context_properties()
    return with_properties(message, added) if added else message


def spans_around(handler: Callable[[Any], Awaitable[object]], group: str) -> Callable[[Any], Awaitable[object]]:
    """Return the handler with a span around each call; the handler itself if OpenTelemetry is not loaded."""
    if not spans.is_loaded():
        return handler

    async def traced(given: Any) -> object:
        with process_span(given, group=group):
            return await handler(given)

    return traced
