"""Event bus with a transactional outbox: events are written in the application's own database transaction.

`EventBus` and `Publisher` block; `sparrow.bus.aio` has the same names with methods to await.
"""

from __future__ import annotations

import warnings
from typing import Any

from sparrow.bus.api import EventBus
from sparrow.bus.codec.headers import Headers
from sparrow.bus.errors import (
    BusDatabaseUnreachable,
    IllegalTransition,
    NoReply,
    NotInTransaction,
    NotSerializable,
    Reject,
    RetryAfter,
    SubscriptionError,
    TablesMissing,
    UnknownMessage,
)
from sparrow.bus.handlers.call_plan import CancelToken, Event
from sparrow.bus.handlers.filters import FilterContext
from sparrow.bus.handlers.registry import subscribe
from sparrow.bus.handlers.subscription import SubscriptionOptions
from sparrow.bus.operations.operations import Operations
from sparrow.bus.operations.stored_event import OperationResult, StoredEvent, Where
from sparrow.bus.publish.outgoing_event import OutgoingEvent, PublishOptions
from sparrow.bus.publish.publisher import Publisher
from sparrow.bus.retry import Retry, exponential, fixed, quartic
from sparrow.bus.settings import BusOptions, BusSettings, cap_settings
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import FailedEvent, StateChange

__all__ = [
    "BusDatabaseUnreachable",
    "BusOptions",
    "BusSettings",
    "CancelToken",
    "Event",
    "EventBus",
    "EventStatus",
    "FailedEvent",
    "FilterContext",
    "Headers",
    "IllegalTransition",
    "NoReply",
    "NotInTransaction",
    "NotSerializable",
    "OperationResult",
    "Operations",
    "OutgoingEvent",
    "PublishOptions",
    "Publisher",
    "Reject",
    "Retry",
    "RetryAfter",
    "StateChange",
    "StoredEvent",
    "SubscriptionError",
    "SubscriptionOptions",
    "TablesMissing",
    "UnknownMessage",
    "Where",
    "cap_settings",
    "exponential",
    "fixed",
    "quartic",
    "subscribe",
]

_RENAMED = {
    "FailedInfo": "FailedEvent",
    "NoAnswer": "NoReply",
    "NotSerialisable": "NotSerializable",
    "Outcome": "OperationResult",
    "Outgoing": "OutgoingEvent",
    "Status": "EventStatus",
    "modern": "cap_settings",
}
"""Names of version 0.1; they are removed in the next version."""


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"sparrow.bus.{name} is now sparrow.bus.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
