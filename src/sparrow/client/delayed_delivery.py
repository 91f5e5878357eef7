"""Messages that are to arrive later: how a sender says so, and the handle by which it may change its mind.

A time of one's own needs a Sparrow broker or RocketMQ 5; older brokers know only the 18 levels and deliver it at once.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import NamedTuple

from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import Refused
from sparrow.model.message import AnyMessage, Message
from sparrow.model.protocol import PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS

_HANDLE_VERSION = "v1"


def with_delivery_time(
    message: AnyMessage,
    *,
    deliver_at: datetime | int | None = None,
    deliver_after_ms: int | None = None,
    delay_level: int | None = None,
) -> AnyMessage:
    """The message with its time: a moment (a datetime, or ms since 1970), a while, or one of the 18 levels."""
    if (deliver_at is not None) + (deliver_after_ms is not None) + (delay_level is not None) > 1:
        raise Refused("a message arrives at one time: give deliver_at, deliver_after_ms or delay_level")
    if deliver_at is not None:
        return with_properties(message, {PROPERTY_TIMER_DELIVER_MS: str(_ms_of(deliver_at))})
    if deliver_after_ms is not None:
        if deliver_after_ms < 0:
            raise Refused(f"{deliver_after_ms} ms from now is in the past")
        # Not turned into a moment here: it is the broker's clock that will tell when it has come.
        return with_properties(message, {PROPERTY_TIMER_DELAY_MS: str(deliver_after_ms)})
    if delay_level is not None:
        return with_properties(message, {PROPERTY_DELAY_LEVEL: str(validate_delay_level(delay_level))})
    return message


def validate_delay_level(level: int) -> int:
    if not 1 <= level <= len(DELAY_LEVELS_MS):
        raise Refused(f"there is no delay level {level}: there are 1 to {len(DELAY_LEVELS_MS)}")
    return level


def with_properties(message: AnyMessage, more: dict[str, str]) -> Message:
    """Return a copy of the message with more properties; the message itself stays unchanged."""
    return Message(message.topic, message.body, properties={**message.properties, **more}, flag=message.flag)


class RecallHandle(NamedTuple):
    """What a handle says; to whoever holds it, it is opaque."""

    topic: str
    broker_name: str
    due_ms: int
    message_id: str

    @classmethod
    def parse(cls, handle: str) -> RecallHandle:
        try:
            version, topic, broker_name, due, message_id = base64.urlsafe_b64decode(handle).decode().split(" ", 4)
            if version != _HANDLE_VERSION:
                raise ValueError(version)
            return cls(topic, broker_name, int(due), message_id)
        except (binascii.Error, ValueError) as cause:
            raise Refused(f"{handle[:80]!r} is no recall handle: take the one in the result of the send") from cause


def _ms_of(moment: datetime | int) -> int:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if moment < 0:
        raise Refused(f"{moment} ms since 1970 is no time a message could be delivered at")
    return moment
