"""What a consumer wants of a topic: everything, some tags, or what an SQL92 expression lets through.

A broker compares hashes of tags, and two tags can have the same hash. So a client looks at the tag itself once more.
"""

from __future__ import annotations

import msgspec

from sparrow.model.errors import BadRequest
from sparrow.model.protocol import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.wire.bodies import SubscriptionData
from sparrow.wire.hashes import java_hash


class Subscription(msgspec.Struct, frozen=True):
    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = EXPRESSION_TAG
    tags: tuple[str, ...] = ()
    """In the order they were written, each once. None: no tag is left out."""
    version_ms: int = 0
    """Brokers keep the newest of a group's subscriptions to a topic."""

    @classmethod
    def of(
        cls, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG, version_ms: int
    ) -> Subscription:
        """`"*"` and `""` are everything, `"a || b"` is two tags; SQL92 goes to the broker as it is."""
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
        if not tags:
            # Taken literally it would be a subscription to nothing for the broker, to everything for Java's client.
            raise BadRequest("Subscription", "expression", f"names no tag: {expression!r}")
        return cls(topic, expression, EXPRESSION_TAG, tags, version_ms)

    @classmethod
    def from_data(cls, data: SubscriptionData) -> Subscription:
        return cls.of(
            data.topic,
            data.sub_string,
            expression_type=data.expression_type or EXPRESSION_TAG,
            version_ms=data.sub_version,
        )

    def matches(self, tags: str | None) -> bool:
        """Whether a message with this tag is wanted. SQL92 was decided by the broker."""
        return not self.tags or tags in self.tags

    def data(self) -> SubscriptionData:
        """As heartbeats and pulls carry it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            expression_type=self.expression_type,
            sub_version=self.version_ms,
            tags_set=list(self.tags),
            code_set=list(dict.fromkeys(map(java_hash, self.tags))),
        )
