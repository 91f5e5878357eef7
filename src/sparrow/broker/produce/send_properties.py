"""Properties that decide how a send is carried out: the delay of the message, and what the answer waits for."""

from __future__ import annotations

from collections.abc import Callable

from sparrow.model.errors import IllegalMessage
from sparrow.model.protocol import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_WAIT_STORED,
)
from sparrow.wire.properties import NAME_SEPARATOR, has_property, property_value

_NO_WAIT = f"{PROPERTY_WAIT_STORED}{NAME_SEPARATOR}false"
_DELIVERY_TIME_PROPERTIES = (PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)


def terminated(properties: bytes) -> bytes:
    """Append the separator that may be missing at the end, so that properties can be added."""
    return properties + b"\x02" if properties and properties[-1] != 2 else properties


def numeric_property(properties: bytes, name: str) -> int | None:
    """Return a numeric property; None if it is missing. A delay level that is not a number counts as missing."""
    found = property_value(properties, name)
    if found is None:
        return None
    try:
        return int(found)
    except ValueError:
        if name == PROPERTY_DELAY_LEVEL:
            return None
        raise IllegalMessage(f"its property {name} is not a number: {found[:80]!r}") from None


def delivery_time_ms(properties: bytes, now_ms: Callable[[], int]) -> int | None:
    """Return the delivery time of a message. Of several properties the first of these counts, as in RocketMQ."""
    if (seconds := numeric_property(properties, PROPERTY_TIMER_DELAY_S)) is not None:
        return now_ms() + seconds * 1000
    if (ms := numeric_property(properties, PROPERTY_TIMER_DELAY_MS)) is not None:
        return now_ms() + ms
    return numeric_property(properties, PROPERTY_TIMER_DELIVER_MS)


def is_delayed(properties: bytes) -> bool:
    """Return whether a message has a delay level or a delivery time."""
    return bool(numeric_property(properties, PROPERTY_DELAY_LEVEL)) or any(
        has_property(properties, name) for name in _DELIVERY_TIME_PROPERTIES
    )


def wants_no_wait(properties: str) -> bool:
    """Return whether the sender wants the answer before the message is durable."""
    # The first condition costs little, and is false for nearly every message.
    return _NO_WAIT in properties and property_value(properties.encode(), PROPERTY_WAIT_STORED) == "false"
