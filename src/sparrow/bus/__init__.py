"""Events written in the application's own database transaction, delivered surely, handled once in effect."""

from sparrow.bus.api import EventBus
from sparrow.bus.errors import (
    IllegalTransition,
    NoReply,
    NotInTransaction,
    NotSerializable,
    Reject,
    RetryAfter,
    SubscriptionError,
    UnknownMessage,
)
from sparrow.bus.handlers.call_plan import CancelToken, Event
from sparrow.bus.handlers.registry import subscribe
from sparrow.bus.headers import Headers
from sparrow.bus.operations.stored_event import OperationResult, StoredEvent, Where
from sparrow.bus.publish.outgoing_event import OutgoingEvent
from sparrow.bus.publish.publisher import Publisher
from sparrow.bus.retry import Retry, exponential, fixed, quartic
from sparrow.bus.settings import BusSettings, cap_settings
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import FailedEvent, StateChange

__all__ = [
    "BusSettings",
    "CancelToken",
    "Event",
    "EventBus",
    "EventStatus",
    "FailedEvent",
    "Headers",
    "IllegalTransition",
    "NoReply",
    "NotInTransaction",
    "NotSerializable",
    "OperationResult",
    "OutgoingEvent",
    "Publisher",
    "Reject",
    "Retry",
    "RetryAfter",
    "StateChange",
    "StoredEvent",
    "SubscriptionError",
    "UnknownMessage",
    "Where",
    "cap_settings",
    "exponential",
    "fixed",
    "quartic",
    "subscribe",
]
