"""Subscriptions: all messages of a topic, those with some tags, or those that match an SQL92 condition.

Brokers compare hashes of tags, which may collide, so the client compares the tags once more.
"""

from __future__ import annotations

import re

import msgspec

from sparrow.model.errors import BadRequest, Refused, SettingsError
from sparrow.model.protocol import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.wire.bodies import SubscriptionData
from sparrow.wire.hashes import java_hash

_looks_like_sql = re.compile(r"\s(=|<>|<=|>=|<|>|between|is (not )?null\b|in *\(|like *')", re.IGNORECASE).search
"""No tag looks like this, and a subscription to it would never get a message."""


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer reads of a topic."""

    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = EXPRESSION_TAG
    tags: tuple[str, ...] = ()
    """In the order of the expression, each once. Empty: all tags."""
    version_ms: int = 0
    """Brokers keep the newest of a group's subscriptions to a topic."""

    @classmethod
    def of(
        cls, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG, version_ms: int
    ) -> Subscription:
        """Parse an expression.

        `"*"` and `""` match everything, `"a || b"` two tags; an SQL92 condition is sent to the broker as it is.
        """
        if type(expression) is not str:
            advice = "one text: '*', or tags such as 'paid || shipped'"
            raise SettingsError("expression", expression, "subscribe", advice)
        if expression_type == EXPRESSION_SQL92:
            if not expression.strip():
                raise BadRequest("Subscription", "expression", "is empty: SQL92 needs a condition")
            return cls(topic, expression, EXPRESSION_SQL92, (), version_ms)
        if expression_type != EXPRESSION_TAG:
            raise BadRequest(
                "Subscription", "expression_type", f"is {expression_type!r}: use {EXPRESSION_TAG} or {EXPRESSION_SQL92}"
            )
        if expression.strip() in ("", SUBSCRIBE_ALL):
            return cls(topic, SUBSCRIBE_ALL, EXPRESSION_TAG, (), version_ms)
        tags = tuple(dict.fromkeys(filter(None, map(str.strip, expression.split("||")))))
        if (condition := next(filter(_looks_like_sql, tags), None)) is not None:
            raise Refused(
                f"{condition!r} names a tag, and looks like an SQL92 condition: write "
                f"subscribe({topic!r}, {expression!r}, expression_type={EXPRESSION_SQL92!r})"
            )
        if not tags:
            # Brokers would deliver nothing for it, and Java's client everything.
            raise BadRequest("Subscription", "expression", f"names no tag: {expression!r}")
        return cls(topic, expression, EXPRESSION_TAG, tags, version_ms)

    @classmethod
    def from_data(cls, data: SubscriptionData) -> Subscription:
        """Return the subscription from a heartbeat's body."""
        return cls.of(
            data.topic,
            data.sub_string,
            expression_type=data.expression_type or EXPRESSION_TAG,
            version_ms=data.sub_version,
        )

    def matches(self, tags: str | None) -> bool:
        """Return whether a message with this tag is subscribed to. The broker has evaluated SQL92."""
        return not self.tags or tags in self.tags

    def data(self) -> SubscriptionData:
        """Return the form that heartbeats and pulls contain."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            expression_type=self.expression_type,
            sub_version=self.version_ms,
            tags_set=list(self.tags),
            code_set=list(dict.fromkeys(map(java_hash, self.tags))),
        )
