"""Events written in the application's own database transaction, delivered surely, handled once in effect."""

from sparrow.bus.bus import EventBus
from sparrow.bus.calling import CancelToken, Event
from sparrow.bus.errors import NoAnswer, NotInTransaction, NotSerialisable, Reject, RetryAfter, SubscriptionError
from sparrow.bus.headers import Headers
from sparrow.bus.probe import FailedInfo, StateChange
from sparrow.bus.publishing import Outgoing
from sparrow.bus.retry import Retry, exponential, fixed, quartic
from sparrow.bus.settings import BusSettings, modern
from sparrow.bus.states import Status
from sparrow.bus.subscriptions import subscribe

__all__ = [
    "BusSettings",
    "CancelToken",
    "Event",
    "EventBus",
    "FailedInfo",
    "Headers",
    "NoAnswer",
    "NotInTransaction",
    "NotSerialisable",
    "Outgoing",
    "Reject",
    "Retry",
    "RetryAfter",
    "StateChange",
    "Status",
    "SubscriptionError",
    "exponential",
    "fixed",
    "modern",
    "quartic",
    "subscribe",
]
