"""Events written in the application's own database transaction, delivered surely, handled once in effect."""

from sparrow.bus.bus import EventBus
from sparrow.bus.calling import CancelToken, Event
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
from sparrow.bus.headers import Headers
from sparrow.bus.probe import FailedInfo, StateChange
from sparrow.bus.publisher import Publisher
from sparrow.bus.publishing import Outgoing
from sparrow.bus.retry import Retry, exponential, fixed, quartic
from sparrow.bus.settings import BusSettings, modern
from sparrow.bus.states import Status
from sparrow.bus.stored import Outcome, StoredEvent, Where
from sparrow.bus.subscriptions import subscribe

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
