"""OpenTelemetry spans of the bus, where the application has set a tracer provider (`sparrow.telemetry.spans`).

The publisher's trace context is stored with the event as `traceparent`; sending links to it, and handling is its child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sparrow.bus.codec.headers import Headers
from sparrow.bus.transports.spi import Envelope
from sparrow.telemetry.spans import TRACE_PARENT, active_tracer


class EventSpans:
    """Spans of one bus."""

    def __init__(self, system: str = "sparrow") -> None:
        self._system = system

    def headers(self) -> Mapping[str, str]:
        """Return the trace context to store with an event."""
        tracer = active_tracer()
        return {} if tracer is None else tracer.context_properties()

    @contextmanager
    def sending(self, envelopes: Sequence[Envelope]) -> Iterator[None]:
        """Open one span for a batch, linked to the publishers of its events."""
        tracer = active_tracer()
        if tracer is None:
            yield
            return
        names, headers = [each.name for each in envelopes], [each.headers for each in envelopes]
        with tracer.sending_batch(names, headers, system=self._system):
            yield

    @contextmanager
    def handling(self, headers: Headers, function: str) -> Iterator[None]:
        """Open a child of the publisher's span."""
        tracer = active_tracer()
        if tracer is None or not headers.get(TRACE_PARENT):
            yield
            return
        with tracer.processing(
            headers.name,
            [headers],
            group=headers.group or "",
            message_id=headers.id,
            conversation_id=headers.correlation_id,
            function=function,
            system=self._system,
        ):
            yield
