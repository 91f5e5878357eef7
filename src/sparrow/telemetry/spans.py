"""OpenTelemetry spans: producer, broker, consumer and bus handler in one trace.

1. Nothing is imported and nothing is paid before the application has set a tracer provider.
2. The context travels in the properties `traceparent`, `tracestate` and `baggage` (W3C) of the message. It is set once,
   when the message is created. Retries, dead letters and resends keep it, as they keep every property.
3. A span about one message is a child of the message's context; a span about several has links to their contexts.
4. Names follow OpenTelemetry's semantic conventions for messaging; they stand here and nowhere else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sparrow.model.message import StoredMessage

TRACER_NAME = "sparrow"
SYSTEM = "rocketmq"
TRACE_PARENT = "traceparent"
CONTEXT_PROPERTIES = (TRACE_PARENT, "tracestate", "baggage")
CONTEXT_CHARS_MAX = 2048
"""A longer context, mostly its baggage, is cut to `traceparent`: properties of a message have little room."""

_SYSTEM, _OPERATION, _OPERATION_TYPE = "messaging.system", "messaging.operation.name", "messaging.operation.type"
_DESTINATION, _GROUP = "messaging.destination.name", "messaging.consumer.group.name"
_MESSAGE_ID, _BODY_BYTES = "messaging.message.id", "messaging.message.body.size"
_BATCH_COUNT, _CONVERSATION = "messaging.batch.message_count", "messaging.message.conversation_id"
_PARTITION, _FUNCTION, _ERROR = "messaging.destination.partition.id", "code.function.name", "error.type"
_TAG, _KEYS = "messaging.rocketmq.message.tag", "messaging.rocketmq.message.keys"


class MessageTracer:
    """Starts spans with one tracer provider."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self.provider, self._trace, self._propagate = provider, trace, propagate
        self._tracer = provider.get_tracer(TRACER_NAME)

    # -- the context of a message -------------------------------------------------------------------------------------

    def context_properties(self) -> dict[str, str]:
        """Return the current context as properties; empty outside a trace."""
        if not self._trace.get_current_span().get_span_context().is_valid:
            return {}
        return self._injected(None)

    def _injected(self, context: Any) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=context)
        if sum(map(len, carrier.values())) > CONTEXT_CHARS_MAX:
            carrier = {name: value for name, value in carrier.items() if name == TRACE_PARENT}
        return carrier

    def _context_of(self, properties: Mapping[str, str | None]) -> Any:
        """Return the context that a message carries; None if it has none."""
        if not properties.get(TRACE_PARENT):
            return None
        context = self._propagate.extract({name: value for name, value in properties.items() if value})
        return context if self._span_context(context).is_valid else None

    def _span_context(self, context: Any) -> Any:
        return self._trace.get_current_span(context).get_span_context()

    def _links(self, all_properties: Sequence[Mapping[str, str | None]]) -> list[Any]:
        contexts = [self._context_of(properties) for properties in all_properties]
        return [self._trace.Link(self._span_context(context)) for context in contexts if context is not None]

    # -- spans --------------------------------------------------------------------------------------------------------

    def start_send(
        self, topic: str, properties: Mapping[str, str], body_bytes: int, *, system: str = SYSTEM
    ) -> tuple[SendSpan, dict[str, str]]:
        """Start the span of a send. Return it, and the properties that the message gets in addition."""
        attributes = _attributes(system, "send", "send", topic) | {_BODY_BYTES: body_bytes}
        for attribute, name in ((_TAG, "TAGS"), (_KEYS, "KEYS")):
            if properties.get(name):
                attributes[attribute] = properties[name]
        has_context = bool(properties.get(TRACE_PARENT))
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            links=self._links([properties]) if has_context else (),
            attributes=attributes,
        )
        added = {} if has_context else self._injected(self._trace.set_span_in_context(span))
        return SendSpan(span, self._trace), added

    def start_batch_send(self, topic: str, count: int, *, system: str = SYSTEM) -> tuple[SendSpan, dict[str, str]]:
        """Start the span of a batch of messages. Return it, and the properties that each message gets in addition."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes(system, "send", "send", topic) | {_BATCH_COUNT: count},
        )
        return SendSpan(span, self._trace), self._injected(self._trace.set_span_in_context(span))

    @contextmanager
    def sending_batch(
        self, destinations: Sequence[str], all_properties: Sequence[Mapping[str, str | None]], *, system: str
    ) -> Iterator[None]:
        """Open a span for events that have contexts of their own, linked to them; none if none has a context."""
        links = self._links(all_properties)
        if not links:
            yield
            return
        destination = destinations[0] if len(set(destinations)) == 1 else ""
        attributes = _attributes(system, "send", "send", destination) | {_BATCH_COUNT: len(all_properties)}
        with self._tracer.start_as_current_span(
            f"send {destination or 'events'}", kind=self._trace.SpanKind.CLIENT, links=links, attributes=attributes
        ):
            yield

    @contextmanager
    def processing(
        self,
        destination: str,
        all_properties: Sequence[Mapping[str, str | None]],
        *,
        group: str = "",
        message_id: str = "",
        conversation_id: str = "",
        function: str = "",
        system: str = SYSTEM,
    ) -> Iterator[None]:
        """Open the span of a handler: a child of the message's context, or linked to those of several messages."""
        attributes = _attributes(system, "process", "process", destination)
        optional = {_GROUP: group, _MESSAGE_ID: message_id, _CONVERSATION: conversation_id, _FUNCTION: function}
        attributes |= {name: value for name, value in optional.items() if value}
        parent = self._context_of(all_properties[0]) if len(all_properties) == 1 else None
        if len(all_properties) > 1:
            attributes[_BATCH_COUNT] = len(all_properties)
        with self._tracer.start_as_current_span(
            f"process {destination}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            links=self._links(all_properties) if parent is None else (),
            attributes=attributes,
        ):
            yield

    def start_store(self, topic: str, properties: Mapping[str, str], body_bytes: int) -> SendSpan:
        """Start the span of a broker that stores a message: a child of the message's context."""
        span = self._tracer.start_span(
            f"store {topic}",
            context=self._context_of(properties),
            kind=self._trace.SpanKind.SERVER,
            attributes=_attributes(SYSTEM, "store", "settle", topic) | {_BODY_BYTES: body_bytes},
        )
        return SendSpan(span, self._trace)


class SendSpan:
    """The span of a send, from its start to its result."""

    def __init__(self, span: Any, trace: Any) -> None:
        self._span, self._trace = span, trace

    def end(self, message_id: str = "", queue_id: int | None = None) -> None:
        """End the span of a send that succeeded."""
        if message_id:
            self._span.set_attribute(_MESSAGE_ID, message_id)
        if queue_id is not None:
            self._span.set_attribute(_PARTITION, str(queue_id))
        self._span.end()

    def fail(self, error: BaseException) -> None:
        """End the span of a send that failed."""
        self._span.set_attribute(_ERROR, type(error).__qualname__)
        self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        self._span.end()

    def follow(self, sending: asyncio.Future[Any]) -> None:
        """End the span with a future of a send's result."""

        def over(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                self.fail(asyncio.CancelledError("the send was cancelled"))
            elif (error := done.exception()) is not None:
                self.fail(error)
            else:
                result = done.result()
                self.end(getattr(result, "message_id", ""), getattr(result, "queue_id", None))

        sending.add_done_callback(over)


def _attributes(system: str, operation: str, operation_type: str, destination: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {_SYSTEM: system, _OPERATION: operation, _OPERATION_TYPE: operation_type}
    if destination:
        attributes[_DESTINATION] = destination
    return attributes


_tracer: MessageTracer | None = None


def is_loaded() -> bool:
    """Return whether the application has imported OpenTelemetry, so that it may set a provider."""
    return "opentelemetry.trace" in sys.modules


def active_tracer() -> MessageTracer | None:
    """Return the tracer of the provider that the application has set; None if there is none."""
    global _tracer  # noqa: PLW0603 - one tracer for each provider; a process has one provider
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if _tracer is not None and _tracer.provider is provider:
        return _tracer
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    _tracer = MessageTracer(provider)
    return _tracer


@contextmanager
def process_span(messages: StoredMessage | Sequence[StoredMessage], *, group: str = "") -> Iterator[None]:
    """Open a span for the processing of messages that were polled or popped; a consumer's handler has one already.

    Without a tracer provider it does nothing.
    """
    tracer = active_tracer()
    if tracer is None or not messages:
        yield
        return
    several = [messages] if isinstance(messages, StoredMessage) else list(messages)
    message_id = several[0].unique_key or "" if len(several) == 1 else ""
    with tracer.processing(several[0].topic, [each.properties for each in several], group=group, message_id=message_id):
        yield
