"""Subscriptions: their options, defaults and validation."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.call_plan import CallPlan
from sparrow.bus.handlers.discovery import import_object
from sparrow.bus.handlers.filters import HandlerFilter, to_filter
from sparrow.bus.handlers.signatures import handler_name
from sparrow.bus.names import checked_topic
from sparrow.bus.retry import Retry
from sparrow.model.errors import IllegalName

Duration = float | str | timedelta
"""Seconds, a timedelta, or text such as "500ms", "2s", "5m", "1h"."""

BATCH_WAIT_DEFAULT_S = 1.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class SubscriptionOptions(TypedDict, total=False):
    """The options of a subscription."""

    group: str | None
    concurrency: int | None
    """Handlers that run at the same time in the whole group; None: the setting of the bus."""
    order_by: Literal["key"] | None
    on_failure: Literal["block", "skip", "park"]
    """What happens to later messages of a key while one fails."""
    retry: Retry | None
    batch: int | None
    """Largest number of messages in one call; the handler receives lists."""
    within: Duration
    """How long a batch waits to be full."""
    filters: Sequence[Any]
    dedupe: bool
    timeout: Duration | None
    """An attempt that takes longer fails."""
    max_runtime: Duration | None
    """One lease of this length, which is not renewed."""
    dead_letter: str | None
    executor: Literal["thread", "process"]
    allow_duplicates: bool


SUBSCRIPTION_OPTION_NAMES = frozenset(SubscriptionOptions.__annotations__)


@dataclass(frozen=True)
class EventSubscription:
    """A handler with its topic and options."""

    topic: str
    """A name or pattern as declared, without the prefix of the bus."""
    handler: Callable[..., Any]
    group: str | None = None
    concurrency: int | None = None
    order_by: Literal["key"] | None = "key"
    on_failure: Literal["block", "skip", "park"] = "block"
    retry: Retry | None = None
    batch: int | None = None
    within_s: float = BATCH_WAIT_DEFAULT_S
    filters: tuple[HandlerFilter, ...] = ()
    dedupe: bool = True
    timeout_s: float | None = None
    max_runtime_s: float | None = None
    dead_letter: str | None = None
    executor: Literal["thread", "process"] = "thread"
    allow_duplicates: bool = False
    checked: CallPlan | None = field(default=None, repr=False, compare=False)

    @property
    def plan(self) -> CallPlan:
        assert self.checked is not None, "a subscription is planned by Registry.check"
        return self.checked

    @functools.cached_property
    def name(self) -> str:
        """The name of the handler for messages."""
        return handler_name(self.handler)

    def __str__(self) -> str:
        return f"{self.name} ({self.topic!r}, group {self.group!r})"


def to_seconds(value: Duration) -> float:
    """Return a duration in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*", value)
        if found is None:
            raise SubscriptionError(f'{value!r} is not a duration: write 2.5, "500ms", "2s", "5m" or "1h"')
        return float(found[1]) * _UNITS_S[found[2] or "s"]
    return float(value)


def new_subscription(
    topic: str, handler: Callable[..., Any], **options: Unpack[SubscriptionOptions]
) -> EventSubscription:
    """Return a validated subscription; raise `SubscriptionError` for wrong values."""
    name = handler_name(handler)
    if not callable(handler):
        raise SubscriptionError(f"{handler!r} cannot handle {topic!r}: it is not callable")
    if topic.startswith("."):
        raise SubscriptionError(f"the topic {topic!r} of {name} is partial: use a router, as in bus.router('order')")
    unknown = options.keys() - SUBSCRIPTION_OPTION_NAMES
    if unknown:
        raise SubscriptionError(
            f"{name} has unknown options {sorted(unknown)}; known options: {sorted(SUBSCRIPTION_OPTION_NAMES)}"
        )
    try:
        checked_topic(topic)
        if options.get("dead_letter"):
            checked_topic(options["dead_letter"] or "")
    except IllegalName as error:
        raise SubscriptionError(f"{name} cannot subscribe: {error}") from error
    plain: dict[str, Any] = dict(options)
    for key in ("within", "timeout", "max_runtime"):
        if key in plain:
            value = plain.pop(key)
            plain[f"{key}_s"] = None if value is None else to_seconds(value)
    plain["filters"] = tuple(
        to_filter(import_object(each) if isinstance(each, str) else each) for each in plain.get("filters", ())
    )
    made = EventSubscription(topic, handler, **plain)
    problem = _problem(made)
    if problem:
        raise SubscriptionError(f"{made}: {problem}")
    return made


def _problem(made: EventSubscription) -> str | None:
    """Return the first rule that the values break."""
    wrong = {
        "concurrency must be at least 1": made.concurrency is not None and made.concurrency < 1,
        "batch must be at least 1": made.batch is not None and made.batch < 1,
        "within must not be negative": made.within_s < 0,
        "timeout must be more than 0": made.timeout_s is not None and made.timeout_s <= 0,
        "max_runtime must be more than 0": made.max_runtime_s is not None and made.max_runtime_s <= 0,
        'order_by is "key" or None': made.order_by not in ("key", None),
        'on_failure is "block", "skip" or "park"': made.on_failure not in ("block", "skip", "park"),
        'executor is "thread" or "process"': made.executor not in ("thread", "process"),
        "group must not be empty": made.group == "",
        "retry is a Retry": made.retry is not None and not isinstance(made.retry, Retry),
    }
    return next((rule for rule, is_broken in wrong.items() if is_broken), None)
