"""OpenTelemetry spans of a broker that stores messages, where its process has a tracer provider."""

from __future__ import annotations

import asyncio

from sparrow.net.channel import Channel
from sparrow.net.dispatcher import DeferredResponse, InlineHandler, InlineResult
from sparrow.telemetry import spans
from sparrow.telemetry.spans import SendSpan
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessage, SendMessageV2
from sparrow.wire.properties import decode


def with_send_spans(handlers: dict[int, InlineHandler]) -> dict[int, InlineHandler]:
    """Return the handlers of sends with spans; the handlers themselves if OpenTelemetry is not loaded."""
    if not spans.is_loaded():
        return handlers
    return {code: _traced(handler) for code, handler in handlers.items()}


def _traced(handler: InlineHandler) -> InlineHandler:
    def handle(command: RemotingCommand, channel: Channel) -> InlineResult:
        span = _start(command)
        if span is None:
            return handler(command, channel)
        try:
            result = handler(command, channel)
        except Exception as error:
            span.fail(error)
            raise
        if result is None or isinstance(result, bytes):
            span.end()
            return result
        if isinstance(result, DeferredResponse):
            span.follow(result.future)
            return result
        future = asyncio.ensure_future(result)
        span.follow(future)
        return future

    return handle


def _start(command: RemotingCommand) -> SendSpan | None:
    """Start the span of a send that carries a context; the spans of others would have no trace to be in."""
    tracer = spans.active_tracer()
    if tracer is None:
        return None
    kind = SendMessage if command.code == RequestCode.SEND_MESSAGE else SendMessageV2
    request = headers.read(kind, command.ext)
    if spans.TRACE_PARENT not in request.properties:
        return None
    return tracer.start_store(request.topic, decode(request.properties.encode()), len(command.body))
