"""Events written in the application's own database transaction, delivered surely, handled once in effect."""

from sparrow.bus.api import EventBus
from sparrow.bus.errors import (
    IllegalTransition,
    NoAnswer,
    NotInTransaction,
    NotSerialisable,
    Reject,
    RetryAfter,
    SubscriptionError,
    UnknownMessage,
)
from sparrow.bus.handlers.call_plan import CancelToken, Event
from sparrow.bus.handlers.registry import subscribe
from sparrow.bus.headers import Headers
from sparrow.bus.operations.stored_event import Outcome, StoredEvent, Where
from sparrow.bus.publish.outgoing_event import Outgoing
from sparrow.bus.publish.publisher import Publisher
from sparrow.bus.retry import Retry, exponential, fixed, quartic
from sparrow.bus.settings import BusSettings, modern
from sparrow.bus.states import Status
from sparrow.bus.telemetry.probe import FailedInfo, StateChange

__all__ = [
    "BusSettings",
    "CancelToken",
    "Event",
    "EventBus",
    "FailedInfo",
    "Headers",
    "IllegalTransition",
    "NoAnswer",
    "NotInTransaction",
    "NotSerialisable",
    "Outcome",
    "Outgoing",
    "Publisher",
    "Reject",
    "Retry",
    "RetryAfter",
    "StateChange",
    "Status",
    "StoredEvent",
    "SubscriptionError",
    "UnknownMessage",
    "Where",
    "exponential",
    "fixed",
    "modern",
    "quartic",
    "subscribe",
]
