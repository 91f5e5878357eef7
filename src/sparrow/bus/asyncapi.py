"""AsyncAPI 3 documents: what an application receives and sends.

```python
document = asyncapi(bus, publishes={"order.created": Order})
```

The bus knows its subscriptions. Published events are declared nowhere, so the caller lists them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.field_naming import split_annotation
from sparrow.bus.codec.json_schema import SchemaCollection
from sparrow.bus.handlers.subscription import EventSubscription
from sparrow.bus.names import broker_event_name, is_pattern
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

ASYNCAPI_VERSION = "3.0.0"
JSON_MEDIA_TYPE, BYTES_MEDIA_TYPE = "application/json", "application/octet-stream"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9._-]")
_WILDCARDS = {"*": "_one_", "#": "_any_"}
_HEADERS = {
    h.ID: "The message's own number; repeats have the same one.",
    h.NAME: "The topic.",
    h.GROUP: "The consumer group, written by the receiver.",
    h.TYPE: "The short name of the payload's class.",
    h.CORRELATION_ID: "The number of the message that began the conversation.",
    h.CORRELATION_SEQUENCE: "How many answers have come before it.",
    h.CALLBACK: "Where an answer is wanted.",
    h.SENT_AT: "MM/dd/yyyy HH:mm:ss, UTC.",
    h.TRACE_PARENT: "W3C trace context.",
}


def asyncapi(
    bus: AnyEventBus,
    *,
    title: str | None = None,
    description: str | None = None,
    publishes: Mapping[str, Any] | None = None,
    servers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the AsyncAPI document of a bus.

    `publishes` maps event names to payload types. `servers` maps names to server objects of the specification. Raises
    `SubscriptionError` if a handler is declared in a way that cannot work.
    """
    bus.check()
    settings = bus.settings
    info: dict[str, Any] = {"title": title or settings.app, "version": settings.version}
    if description:
        info["description"] = description
    document = _Document(SchemaCollection(settings.naming))
    for group, plan in sorted(bus.subscriptions.groups().items()):
        for subscription in plan.subscriptions:
            document.receives(group, broker_event_name(subscription.topic, settings.topic_prefix), subscription)
            if subscription.dead_letter is not None:
                dead = broker_event_name(subscription.dead_letter, settings.topic_prefix)
                document.sends(dead, Any, f"What {subscription.name} could not handle.")
    for name, annotation in (publishes or {}).items():
        document.sends(broker_event_name(name, settings.topic_prefix), annotation, None)
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": info,
        **({"servers": dict(servers)} if servers else {}),
        "defaultContentType": JSON_MEDIA_TYPE,
        "channels": document.channels,
        "operations": document.operations,
        "components": {
            "messages": document.messages,
            "schemas": document.schemas.components(),
            "messageTraits": {"event": {"headers": _header_schema()}},
        },
    }


def format_document(document: Mapping[str, Any], form: Literal["json", "yaml"] = "json") -> str:
    """Format a document as JSON or YAML; YAML needs the package pyyaml."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    try:
        return msgspec.yaml.encode(document).decode()
    except ImportError as error:
        raise Refused("YAML output needs pyyaml: run `pip install pyyaml`, or use JSON") from error


class _Document:
    def __init__(self, schemas: SchemaCollection) -> None:
        self.schemas = schemas
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}

    def receives(self, group: str, topic: str, subscription: EventSubscription) -> None:
        operation = self._operation("receive", topic, _payload_of(subscription))
        documentation = inspect.getdoc(subscription.handler)
        if documentation and inspect.isroutine(subscription.handler):
            summary, _, rest = documentation.partition("\n")
            operation["summary"] = summary
            if rest.strip():
                operation["description"] = rest.strip()
        operation["tags"] = [{"name": group}]
        operation["x-group"], operation["x-handler"] = group, subscription.name
        if _answers(subscription):
            operation["reply"] = {"address": {"location": f"$message.header#/{h.CALLBACK}"}}
        self.operations[_free(self.operations, f"receive.{topic}.{group}")] = operation

    def sends(self, topic: str, annotation: Any, summary: str | None) -> None:
        operation = self._operation("send", topic, annotation)
        if summary is not None:
            operation["summary"] = summary
        self.operations[_free(self.operations, f"send.{topic}")] = operation

    def _operation(self, action: str, topic: str, annotation: Any) -> dict[str, Any]:
        channel, message = self._channel(topic), self._message(topic, annotation)
        self.channels[channel]["messages"][message] = {"$ref": f"#/components/messages/{message}"}
        return {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
        }

    def _channel(self, topic: str) -> str:
        for name, channel in self.channels.items():
            if channel["address"] == topic:
                return name
        name = _free(self.channels, topic)
        self.channels[name] = {"address": topic, "messages": {}}
        if is_pattern(topic):
            self.channels[name]["description"] = "A pattern: `*` is exactly one word, `#` any number of words."
        return name

    def _message(self, topic: str, annotation: Any) -> str:
        is_raw = annotation is bytes
        message = {
            "name": topic,
            "contentType": BYTES_MEDIA_TYPE if is_raw else JSON_MEDIA_TYPE,
            "correlationId": {"location": f"$message.header#/{h.CORRELATION_ID}"},
            "traits": [{"$ref": "#/components/messageTraits/event"}],
            "payload": {} if is_raw else self.schemas.schema(annotation),
        }
        for name, known in self.messages.items():
            if known == message:
                return name
        name = _free(self.messages, topic)
        self.messages[name] = message
        return name


def _payload_of(subscription: EventSubscription) -> Any:
    """Return the payload type of one message, also for a batch handler."""
    wanted = subscription.plan.payload_annotation
    if not subscription.plan.is_batch:
        return wanted
    _, _, arguments = split_annotation(wanted)
    return arguments[0] if arguments else Any


def _answers(subscription: EventSubscription) -> bool:
    """Return whether the handler's annotation says that it returns a reply."""
    handler: Any = subscription.handler
    try:
        returned = inspect.signature(handler).return_annotation
    except (TypeError, ValueError):
        return False
    return returned not in (inspect.Signature.empty, None, "None")


def _header_schema() -> dict[str, Any]:
    properties = {name: {"type": ["string", "null"], "description": sentence} for name, sentence in _HEADERS.items()}
    for name in (h.ID, h.NAME):
        properties[name]["type"] = "string"
    return {"type": "object", "required": [h.ID, h.NAME], "properties": properties}


def _free(taken: Mapping[str, Any], wanted: str) -> str:
    """Return a key that is allowed in references and not taken."""
    words = (_WILDCARDS.get(word, _NOT_IN_KEYS.sub("_", word)) for word in wanted.split("."))
    key = name = ".".join(words)
    number = 2
    while key in taken:
        key, number = f"{name}-{number}", number + 1
    return key
