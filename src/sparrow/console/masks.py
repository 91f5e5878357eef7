"""Masks: parts of messages that only administrators see.

1. A rule names topics, and what of their messages is hidden: the body, members of a JSON body, or properties.
2. Every message leaves the API through `mask_message`, and the keys and tag of one that waits through `mask_labels`,
   with the masks of the request that asks: the one check of access sets them, so that a new route cannot forget them.
3. In doubt more is hidden: a body in which members should be hidden is hidden as a whole if it is not JSON, or is too
   large to be read. The texts of an error, which often quote the message, are hidden with any part of it. In retry,
   dead-letter and system topics, all rules hold for a message that does not say which topic it was sent to.
4. What is hidden cannot be searched for: the answer would tell what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from sparrow.model.errors import NotPermitted
from sparrow.model.protocol import (
    PROPERTY_DLQ_REASON,
    PROPERTY_DLQ_TRACEBACK,
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
)
from sparrow.operations.messages import MessageView
from sparrow.operations.topics import TopicKind, kind_of_topic
from sparrow.settings import ConsoleMask

HIDDEN = "••••••"
READ_BYTES_MAX = 256 * 1024
"""A larger body is not parsed to hide members of it, which would hold up other requests."""
_ORIGINS = (PROPERTY_REAL_TOPIC, PROPERTY_RETRY_TOPIC)
"""Where a copy of a message, such as a dead letter, says which topic it was sent to."""
_SEARCH_REMEDY = "console.masks hides it from roles below admin: search by id or time"
_ERROR_TEXTS = frozenset({PROPERTY_DLQ_REASON, PROPERTY_DLQ_TRACEBACK})


class MaskedMessage(msgspec.Struct, frozen=True):
    """A message without what its reader may not see."""

    message: MessageView
    is_body_hidden: bool
    """The body is hidden as a whole, and is empty here."""
    is_changed: bool
    """Anything is hidden."""


class Masks:
    """The rules that hold for a request."""

    def __init__(self, rules: Sequence[ConsoleMask] = ()) -> None:
        self._rules = rules

    def mask(self, message: MessageView) -> MaskedMessage:
        """Return the message without what the rules of its topic hide."""
        origins = (message.properties[name] for name in _ORIGINS if name in message.properties)
        rules = self._rules_of(message.topic, *origins)
        if not rules:
            return MaskedMessage(message, False, False)
        body, is_hidden = self._body(message.body, rules)
        patterns = _properties_of(rules)
        keys, tags = _hide_labels(message.keys, message.tags, patterns)
        masked = msgspec.structs.replace(
            message,
            body=body,
            properties={
                name: HIDDEN if _is_match(name, patterns) else value for name, value in message.properties.items()
            },
            keys=tuple(keys),
            tags=tags,
        )
        is_changed = is_hidden or masked != message
        if is_changed:
            error_texts = dict.fromkeys(masked.properties.keys() & _ERROR_TEXTS, HIDDEN)
            masked = msgspec.structs.replace(masked, properties=masked.properties | error_texts)
        return MaskedMessage(masked, is_hidden, is_changed)

    def mask_labels(self, topic: str, keys: Sequence[str], tags: str | None) -> tuple[Sequence[str], str | None]:
        """Return the keys and the tag of a message that is not at hand, without what the rules of its topic hide."""
        return _hide_labels(keys, tags, _properties_of(self._rules_of(topic)))

    def mask_value(self, name: str, value: Any) -> Any:
        """Return the decoded payload of an event of the bus, without what the rules of its name hide."""
        rules = self._rules_of(name)
        if any(rule.body for rule in rules):
            return HIDDEN
        return _without(value, [pattern for rule in rules for pattern in rule.fields])

    def mask_headers(self, name: str, headers: dict[str, Any]) -> dict[str, Any]:
        """Return the headers of an event of the bus, without what the rules of its name hide."""
        patterns = _properties_of(self._rules_of(name))
        return {each: HIDDEN if _is_match(each, patterns) else value for each, value in headers.items()}

    def hides_content(self, name: str | None) -> bool:
        """Return whether bodies of a topic, or of any topic, are hidden as a whole or in part."""
        return any(rule.body or rule.fields for rule in self._rules_of(name))

    def hides_property(self, name: str | None, property_name: str) -> bool:
        """Return whether a property of messages of a topic, or of any topic, is hidden."""
        return _is_match(property_name, _properties_of(self._rules_of(name)))

    def hides_anything(self, name: str | None) -> bool:
        """Return whether anything is hidden of messages of a topic, or of any topic."""
        return any(rule.body or rule.fields or rule.properties for rule in self._rules_of(name))

    def _rules_of(self, *names: str | None) -> list[ConsoleMask]:
        """Return the rules for a message of these topics: where it is, and where it was sent to."""
        known = [name for name in names if name is not None]
        if all(kind_of_topic(name) is not TopicKind.NORMAL for name in known):
            return list(self._rules)  # such topics have copies of messages of all topics
        return [rule for rule in self._rules if any(_is_match(name, rule.topics) for name in known)]

    @staticmethod
    def _body(body: bytes, rules: Iterable[ConsoleMask]) -> tuple[bytes, bool]:
        """Return the body, and whether it is hidden as a whole."""
        patterns = [pattern for rule in rules for pattern in rule.fields]
        if any(rule.body for rule in rules):
            return b"", True
        if not patterns:
            return body, False
        if len(body) > READ_BYTES_MAX:
            return b"", True
        try:
            value = json.loads(body)
            shown = _without(value, patterns)
            return body if shown == value else json.dumps(shown, ensure_ascii=False).encode(), False
        except (ValueError, RecursionError):
            return b"", True


NO_MASKS = Masks()
_active: ContextVar[Masks] = ContextVar("masks", default=NO_MASKS)


def set_masks(masks: Masks) -> None:
    """Set the masks of the request that this task serves."""
    _active.set(masks)


def active_masks() -> Masks:
    """Return the masks of the request that this task serves."""
    return _active.get()


def mask_message(message: MessageView) -> MaskedMessage:
    """Return a message without what the reader of this request may not see."""
    return _active.get().mask(message)


def check_search(topic: str | None, *, text: str | None = None, key: str | None = None, tag: str | None = None) -> None:
    """Refuse to search a topic, or all, for what the reader may not see of its messages."""
    masks = _active.get()
    for what, is_hidden in (
        ("a search in the content", bool(text) and masks.hides_content(topic)),
        ("a search by key", bool(key) and masks.hides_property(topic, PROPERTY_KEYS)),
        ("a search by tag", bool(tag) and masks.hides_property(topic, PROPERTY_TAGS)),
    ):
        if is_hidden:
            raise NotPermitted(what, _SEARCH_REMEDY)


def check_event_search(text: str | None) -> None:
    """Refuse to search headers, payloads and errors of the bus for a text if anything of them is hidden."""
    if text and _active.get().hides_anything(None):
        raise NotPermitted("a search in the content", _SEARCH_REMEDY)


def _hide_labels(keys: Sequence[str], tags: str | None, patterns: Sequence[str]) -> tuple[Sequence[str], str | None]:
    return (
        (HIDDEN,) if keys and _is_match(PROPERTY_KEYS, patterns) else keys,
        HIDDEN if tags and _is_match(PROPERTY_TAGS, patterns) else tags,
    )


def _properties_of(rules: Iterable[ConsoleMask]) -> list[str]:
    return [pattern for rule in rules for pattern in rule.properties]


def _is_match(name: str, patterns: Iterable[str]) -> bool:
    lower = name.lower()
    return any(fnmatchcase(lower, pattern.lower()) for pattern in patterns)


def _without(value: Any, patterns: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {
            name: HIDDEN if _is_match(str(name), patterns) else _without(each, patterns) for name, each in value.items()
        }
    return [_without(each, patterns) for each in value] if isinstance(value, list) else value
