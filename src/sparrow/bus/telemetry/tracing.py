"""OpenTelemetry spans, if the application has OpenTelemetry installed.

The publisher's trace context is stored with the event as `traceparent`; sending and handling link to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sparrow.bus.codec.headers import Headers
from sparrow.bus.transports.spi import Envelope

TRACER_NAME = "sparrow.bus"


class EventTracing:
    """Spans with OpenTelemetry's semantic conventions for messaging."""

    def __init__(self, system: str = "sparrow") -> None:
        self._system = system
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            self._trace: Any = None
        else:
            self._trace, self._propagate = trace, propagate

    def headers(self) -> Mapping[str, str]:
        """Return the trace context to store with an event."""
        if self._trace is None or not self._trace.get_current_span().get_span_context().is_valid:
            return {}
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        return carrier

    @contextmanager
    def sending(self, envelopes: Sequence[Envelope]) -> Iterator[None]:
        """Open one span for a batch, linked to the publishers of its events."""
        links = [link for envelope in envelopes if (link := self._link(envelope.headers)) is not None]
        if not links:  # tracing is not used
            yield
            return
        names = {envelope.name for envelope in envelopes}
        attributes = {
            "messaging.system": self._system,
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(envelopes),
        }
        if len(names) == 1:
            attributes["messaging.destination.name"] = next(iter(names))
        tracer = self._trace.get_tracer(TRACER_NAME)
        with tracer.start_as_current_span(
            f"send {next(iter(names)) if len(names) == 1 else 'events'}",
            kind=self._trace.SpanKind.PRODUCER,
            links=links,
            attributes=attributes,
        ):
            yield

    @contextmanager
    def handling(self, headers: Headers, function: str) -> Iterator[None]:
        """Open a child of the publisher's span."""
        if self._link(headers) is None:
            yield
            return
        parent = self._propagate.extract({name: value for name, value in headers.items() if value is not None})
        attributes = {
            "messaging.system": self._system,
            "messaging.operation.type": "process",
            "messaging.destination.name": headers.name,
            "messaging.consumer.group.name": headers.group or "",
            "messaging.message.id": headers.id,
            "messaging.message.conversation_id": headers.correlation_id,
            "code.function.name": function,
        }
        tracer = self._trace.get_tracer(TRACER_NAME)
        with tracer.start_as_current_span(
            f"process {headers.name}", context=parent, kind=self._trace.SpanKind.CONSUMER, attributes=attributes
        ):
            yield

    def _link(self, headers: Mapping[str, str | None]) -> Any:
        if self._trace is None or not headers.get("traceparent"):
            return None
        carrier = {name: value for name, value in headers.items() if value is not None}
        span = self._trace.get_current_span(self._propagate.extract(carrier))
        context = span.get_span_context()
        return self._trace.Link(context) if context.is_valid else None
