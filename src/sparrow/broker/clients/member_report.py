"""What a consumer reports about itself that must be the same for all members of its group.

Members that differ skip messages: a queue is read by one member, with the newest subscription of the group. The
subscription to the retry topic is left out, because only members that share queues have it.
"""

from __future__ import annotations

import msgspec

from sparrow.model.protocol import EXPRESSION_TAG, RETRY_TOPIC_PREFIX, SUBSCRIBE_ALL
from sparrow.wire.bodies import ConsumerData, SubscriptionData


class MemberReport(msgspec.Struct, frozen=True):
    """The message model and the subscriptions of a consumer, in a form that can be compared."""

    message_model: str
    subscriptions: tuple[tuple[str, str], ...]
    """(topic, expression), sorted."""

    @classmethod
    def of(cls, consumer: ConsumerData) -> MemberReport:
        """Return the report of a heartbeat."""
        subscriptions = {
            (data.topic, _expression_of(data))
            for data in consumer.subscription_data_set
            if not data.topic.startswith(RETRY_TOPIC_PREFIX)
        }
        return cls(consumer.message_model, tuple(sorted(subscriptions)))

    def __str__(self) -> str:
        subscriptions = ", ".join(f"{topic} ({expression})" for topic, expression in self.subscriptions)
        return f"{self.message_model.lower()} {subscriptions or 'without subscriptions'}"


def _expression_of(data: SubscriptionData) -> str:
    text = data.sub_string.strip()
    if data.expression_type not in ("", EXPRESSION_TAG):
        return f"{data.expression_type}: {text}"
    return " || ".join(sorted(set(filter(None, map(str.strip, text.split("||")))))) or SUBSCRIBE_ALL
