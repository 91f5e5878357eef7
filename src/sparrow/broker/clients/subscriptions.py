"""What a group wants of a topic, as a broker looks at it: everything, messages whose tag has one of some hashes, or
those whose properties meet a condition (SQL92).

Hashes are made here and never taken over from a client: Go hashes bytes where Java, and so the consume queue, hashes
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
"""Longer expressions are read anew each time: what is kept must not grow with what somebody sends."""


class BadExpression(RemoteRefused):
    """Whoever subscribes must write something else."""

    def __init__(self, topic: str, expression: str, why: str) -> None:
        super().__init__(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription {expression!r} to topic {topic!r} {why}"
        )


class UnsupportedFilterType(RemoteRefused):
    """A kind of expression that this broker cannot evaluate. Java's broker answers the same code."""

    def __init__(self, topic: str, expression_type: str) -> None:
        super().__init__(
            ResponseCode.SYSTEM_ERROR,
            f"the broker cannot filter topic {topic!r} by {expression_type}: use {EXPRESSION_TAG} or "
            f"{EXPRESSION_SQL92}",
        )


class SubscriptionFilter(msgspec.Struct, frozen=True):
    """Which messages of a topic go to a group."""

    version: int
    """Of two subscriptions to a topic, the one with the higher version counts."""
    tags_codes: frozenset[int] | None
    """None: whatever the tag."""
    data: SubscriptionData
    selector: Selector | None = None
    """None: whatever the properties."""

    def matches(self, tags_code: int, properties: bytes) -> bool:
        """Whether a message is one of them."""
        if self.tags_codes is not None and tags_code not in self.tags_codes:
            return False
        return self.selector is None or self.selector.matches(properties)


def build_filter(data: SubscriptionData) -> SubscriptionFilter:
    """The filter of a subscription, or `BadExpression`, or `UnsupportedFilterType`."""
    if data.expression_type not in ("", EXPRESSION_TAG):
        return _by_property(data)
    return SubscriptionFilter(data.sub_version, _codes_of(data), data)


def parse_filter(topic: str, expression: str | None, expression_type: str | None) -> SubscriptionFilter:
    """The filter of a pull that carries its subscription with it. These come by the thousand, and differ little."""
    read = _parsed if len(expression or "") <= _KEPT_CHARS_MAX else _parsed.__wrapped__
    return read(topic, expression or SUBSCRIBE_ALL, expression_type or EXPRESSION_TAG)


@lru_cache(maxsize=_KEPT_MAX)
def _parsed(topic: str, expression: str, expression_type: str) -> SubscriptionFilter:
    return build_filter(SubscriptionData(topic, expression, expression_type))


def _by_property(data: SubscriptionData) -> SubscriptionFilter:
    """What looks at more than the tag."""
    if data.expression_type != EXPRESSION_SQL92:
        raise UnsupportedFilterType(data.topic, data.expression_type)
    try:
        return SubscriptionFilter(data.sub_version, None, data, compile_selector(data.sub_string))
    except InvalidSelector as refusal:
        raise BadExpression(data.topic, data.sub_string, f"makes no sense: {refusal}") from refusal


def _codes_of(data: SubscriptionData) -> frozenset[int] | None:
    # In class filter mode somebody else filters, and asks for all there is.
    if data.sub_string.strip() in ("", SUBSCRIBE_ALL) or data.class_filter_mode:
        return None
    tags: Sequence[str] = data.tags_set or list(filter(None, map(str.strip, data.sub_string.split("||"))))
    if not tags:
        # Taken literally it would be a subscription to nothing here, and to everything in Java's client.
        raise BadExpression(data.topic, data.sub_string, "names no tag: use '*', or tags such as 'a || b'")
    return frozenset(map(java_hash, tags))
