"""Delayed delivery: the message properties that request it, and the handle that recalls a delayed message.

A delivery time needs a Sparrow broker or RocketMQ 5; older brokers support only the 18 delay levels and deliver other
messages at once.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import NamedTuple

from sparrow.client.option_checks import validate_value
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
    """Return the message with a delivery time (a datetime with a zone, or ms since 1970), a delay, or a delay level."""
    if (deliver_at is not None) + (deliver_after_ms is not None) + (delay_level is not None) > 1:
        raise Refused("a message has one delivery time: use only one of deliver_at, deliver_after_ms and delay_level")
    if deliver_at is not None:
        validate_value("deliver_at", deliver_at, datetime | int, "send")
        return with_properties(message, {PROPERTY_TIMER_DELIVER_MS: str(_ms_of(deliver_at))})
    if deliver_after_ms is not None:
        validate_value("deliver_after_ms", deliver_after_ms, int, "send")
        if deliver_after_ms < 0:
            raise Refused(f"deliver_after_ms is {deliver_after_ms}: use 0 or more")
        # Sent as a delay: the broker computes the time with its own clock.
        return with_properties(message, {PROPERTY_TIMER_DELAY_MS: str(deliver_after_ms)})
    if delay_level is not None:
        return with_properties(message, {PROPERTY_DELAY_LEVEL: str(validate_delay_level(delay_level))})
    return message


def validate_delay_level(level: int) -> int:
    """Return the level if it exists; raise `Refused` otherwise."""
    if type(level) is not int or not 1 <= level <= len(DELAY_LEVELS_MS):
        raise Refused(f"there is no delay level {level!r}: use 1 to {len(DELAY_LEVELS_MS)}")
    return level


def with_properties(message: AnyMessage, more: dict[str, str]) -> Message:
    """Return a copy of the message with more properties; the message itself stays unchanged."""
    return Message(message.topic, message.body, properties={**message.properties, **more}, flag=message.flag)


class RecallHandle(NamedTuple):
    """The content of a recall handle, which is opaque to users."""

    topic: str
    broker_name: str
    due_ms: int
    message_id: str

    @classmethod
    def parse(cls, handle: str) -> RecallHandle:
        """Decode a recall handle; raise `Refused` if the text is not one."""
        try:
            version, topic, broker_name, due, message_id = base64.urlsafe_b64decode(handle).decode().split(" ", 4)
            if version != _HANDLE_VERSION:
                raise ValueError(version)
            return cls(topic, broker_name, int(due), message_id)
        except (binascii.Error, ValueError) as cause:
            raise Refused(f"{handle[:80]!r} is not a recall handle: use the recall_handle of a SendResult") from cause


def _ms_of(moment: datetime | int) -> int:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if moment < 0:
        raise Refused(f"deliver_at is {moment}: use a datetime, or ms since 1970")
    return moment
