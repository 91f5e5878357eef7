"""Subscription filters: all messages, messages with some tags, or messages whose properties match a SQL92 condition.

Tag hashes are computed here and never taken from a client: Go hashes bytes, but Java, and so the consume queue, hashes
UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from sparrow.broker.sql92 import InvalidSelector, Selector, compile_selector
from sparrow.model.protocol import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.wire.bodies import SubscriptionData
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteRefused
from sparrow.wire.hashes import java_hash

_KEPT_MAX = 4096
_KEPT_CHARS_MAX = 1024
"""Longer expressions are not cached, so that clients cannot fill the cache with large ones."""


class BadExpression(RemoteRefused):
    """An invalid subscription expression."""

    def __init__(self, topic: str, expression: str, why: str) -> None:
        super().__init__(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"subscription {expression!r} to topic {topic!r} {why}"
        )


class UnsupportedFilterType(RemoteRefused):
    """An expression type that this broker cannot evaluate. Java's broker answers the same code."""

    def __init__(self, topic: str, expression_type: str) -> None:
        super().__init__(
            ResponseCode.SYSTEM_ERROR,
            f"cannot filter topic {topic!r} by {expression_type}: use {EXPRESSION_TAG} or {EXPRESSION_SQL92}",
        )


class SubscriptionFilter(msgspec.Struct, frozen=True):
    """The messages of a topic that a group gets."""

    version: int
    """Of two subscriptions to a topic, the one with the higher version is valid."""
    tags_codes: frozenset[int] | None
    """None: any tag."""
    data: SubscriptionData
    selector: Selector | None = None
    """None: any properties."""

    def matches(self, tags_code: int, properties: bytes) -> bool:
        """Return whether a message passes the filter."""
        if self.tags_codes is not None and tags_code not in self.tags_codes:
            return False
        return self.selector is None or self.selector.matches(properties)


def build_filter(data: SubscriptionData) -> SubscriptionFilter:
    """Return the filter of a subscription, or raise `BadExpression` or `UnsupportedFilterType`."""
    if data.expression_type not in ("", EXPRESSION_TAG):
        return _by_property(data)
    return SubscriptionFilter(data.sub_version, _codes_of(data), data)


def parse_filter(topic: str, expression: str | None, expression_type: str | None) -> SubscriptionFilter:
    """Return the filter of a pull that contains its subscription. Cached, because most pulls repeat it."""
    read = _parsed if len(expression or "") <= _KEPT_CHARS_MAX else _parsed.__wrapped__
    return read(topic, expression or SUBSCRIBE_ALL, expression_type or EXPRESSION_TAG)


@lru_cache(maxsize=_KEPT_MAX)
def _parsed(topic: str, expression: str, expression_type: str) -> SubscriptionFilter:
    return build_filter(SubscriptionData(topic, expression, expression_type))


def _by_property(data: SubscriptionData) -> SubscriptionFilter:
    """Return the filter of a SQL92 subscription."""
    if data.expression_type != EXPRESSION_SQL92:
        raise UnsupportedFilterType(data.topic, data.expression_type)
    try:
        return SubscriptionFilter(data.sub_version, None, data, compile_selector(data.sub_string))
    except InvalidSelector as refusal:
        raise BadExpression(data.topic, data.sub_string, f"is invalid: {refusal}") from refusal


def _codes_of(data: SubscriptionData) -> frozenset[int] | None:
    # In class filter mode the client filters, and gets all messages.
    if data.sub_string.strip() in ("", SUBSCRIBE_ALL) or data.class_filter_mode:
        return None
    tags: Sequence[str] = data.tags_set or list(filter(None, map(str.strip, data.sub_string.split("||"))))
    if not tags:
        # Java's client takes an empty list of tags for all messages, the consume queue for none.
        raise BadExpression(data.topic, data.sub_string, "has no tag: use '*', or tags such as 'a || b'")
    return frozenset(map(java_hash, tags))
