"""Unusual arguments of `Message`: converted if that is safe, else refused with what to write instead.

`Message` calls these only for arguments that are not plain already, because it is made for every message that is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

_ARGUMENTS = ("topic", "body", "tags", "keys", "priority", "properties", "flag")
_MEANT = {
    "tag": "tags",
    "key": "keys",
    "property": "properties",
    "header": "properties",
    "headers": "properties",
    "attributes": "properties",
    "value": "body",
    "payload": "body",
    "data": "body",
    "message": "body",
}
_OF_SEND = ("deliver_at", "deliver_after_ms", "delay_level", "queue", "selector", "timeout_ms")


def unknown_argument(name: str, *_others: str) -> TypeError:
    """Return the error for an argument that `Message` does not have."""
    said = f"Message has no argument {name!r}"
    meant = _MEANT.get(name) or next(iter(get_close_matches(name, _ARGUMENTS, 1)), None)
    if meant is not None:
        return TypeError(f"{said}: write {meant}=...")
    if name in _OF_SEND:
        return TypeError(f"{said}: give it to the producer, as in producer.send(message, {name}=...)")
    return TypeError(
        f"{said}; its arguments are {', '.join(_ARGUMENTS)}. For a property, write properties={{{name!r}: '...'}}"
    )


def encode_body(body: object) -> bytes:
    """Return a body that is not bytes as bytes; raise `TypeError` if it is neither text nor a buffer of bytes."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(
        f"the body of a message is bytes or text, not {_described(body)}: "
        "write Message.json(topic, value), or encode it yourself"
    )


def not_a_message(given: object) -> TypeError:
    """Return the error for something else that is sent."""
    return TypeError(f"only a Message can be sent, not {_described(given)}: write send(Message('topic', ...))")


def text_keys(keys: object) -> str:
    """Return keys as the property that brokers index."""
    if isinstance(keys, str):
        return keys
    if isinstance(keys, Iterable) and not isinstance(keys, bytes | bytearray | Mapping):
        every = list(keys)
        if all(isinstance(key, str) for key in every):
            return " ".join(every)
    raise TypeError(
        f"the keys of a message are a text or several texts, not {_described(keys)}: write keys=['order-7']"
    )


def text_pairs(properties: object) -> Iterable[tuple[Any, Any]]:
    """Return the names and values of properties that are not in a plain dict."""
    if isinstance(properties, Mapping):
        return properties.items()
    raise TypeError(
        f"the properties of a message are a dict, not {_described(properties)}: write properties={{'city': 'Oslo'}}"
    )


def text_pair(name: object, value: object) -> tuple[str, str]:
    """Return a name and a value that are some kind of text."""
    if isinstance(name, str) and isinstance(value, str):
        return name, value
    wrong = _described(value) if isinstance(name, str) else "named by no text"
    advice = "leave it out" if value is None else f"write {{{str(name)!r}: {str(value)!r}}}"
    raise TypeError(f"property {name!r} of a message is {wrong}, and properties are texts: {advice}")


def text_tag(tags: object) -> str:
    """Return a tag that is some kind of text."""
    if isinstance(tags, str):
        return tags
    raise TypeError(
        f"a message has one tag, and tags is {_described(tags)}: write tags='paid'. Subscriptions name several."
    )


def _described(value: object) -> str:
    shown = repr(value)
    if value is None:
        return shown
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"
