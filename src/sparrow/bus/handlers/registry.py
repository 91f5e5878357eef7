"""The registry of subscriptions: declared by decorators, added at run time, or read from a file.

1. An event goes to the handler with its exact name, or else to the one with the most specific pattern; letter case
   counts.
2. Nothing can be found before `check`. After it every change is checked at once; a change that fails has no effect.
3. The check reports all errors, not only the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

from sparrow.bus.codec.payload import FieldNaming
from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.call_plan import CallPlan, Provider, plan_call
from sparrow.bus.handlers.discovery import import_modules, import_object, read_subscription_file
from sparrow.bus.handlers.router import Function, Router, marked_handlers, subscribe
from sparrow.bus.handlers.signatures import handler_name
from sparrow.bus.handlers.subscription import (
    SUBSCRIPTION_OPTION_NAMES,
    EventSubscription,
    SubscriptionOptions,
    new_subscription,
)
from sparrow.bus.names import broker_event_name, broker_group_name, is_pattern, matches, specificity
from sparrow.model.errors import IllegalName

__all__ = [
    "EventSubscription",
    "GroupSubscriptions",
    "Router",
    "SubscriptionOptions",
    "SubscriptionRegistry",
    "subscribe",
]

_FOUND_NAMES_MAX = 10_000


@dataclass(frozen=True)
class GroupSubscriptions:
    """The subscriptions of one group."""

    group: str
    topics: tuple[str, ...]
    """Names and patterns on the broker."""
    concurrency: int | None
    subscriptions: tuple[EventSubscription, ...]


class SubscriptionRegistry:
    """All subscriptions of a bus."""

    def __init__(self, default_group: str | None = None) -> None:
        """Create a registry; `default_group` is the group of subscriptions without one."""
        self._default_group = default_group
        self.on_change: list[Callable[[], None]] = []
        """Called after each change once the registry is checked: groups may have been added, removed or changed."""
        self._lock = threading.RLock()
        self._declared: list[EventSubscription] = []
        self._by_name: list[tuple[str, str, SubscriptionOptions]] = []
        """(topic, "module:name", options). The check imports them: a file may be read before its handlers exist."""
        self._terms: _Terms | None = None
        self._groups: dict[str, _Group] = {}

    def subscribe(self, topic: str, **options: Unpack[SubscriptionOptions]) -> Callable[[Function], Function]:
        """Return a decorator that subscribes a function; a function may have several."""
        return Router(self, "", {}).subscribe(topic, **options)

    def router(self, prefix: str, **defaults: Unpack[SubscriptionOptions]) -> Router:
        """Return a router for partial topics.

        `defaults` apply to all of its subscriptions; its filters run outside theirs.
        """
        return Router(self, prefix, defaults)

    def add(self, topic: str, handler: Callable[..., Any] | str, **options: Unpack[SubscriptionOptions]) -> None:
        """Add a subscription; the handler may be a string "module:name"."""
        if options.get("group") is None and self._default_group is not None:
            options["group"] = self._default_group
        with self._lock:
            if isinstance(handler, str) and self._terms is None:
                self._by_name.append((topic, handler, options))
                return
            function = import_object(handler) if isinstance(handler, str) else handler
            self._change([*self._declared, new_subscription(topic, function, **options)])
        self._notify()

    def remove(self, topic: str, handler: Callable[..., Any]) -> None:
        """End every subscription of the handler to exactly this topic or pattern."""
        with self._lock:
            kept = [each for each in self._declared if (each.topic, each.handler) != (topic, handler)]
            if len(kept) == len(self._declared):
                raise SubscriptionError(f"{handler_name(handler)} is not subscribed to {topic!r}")
            self._change(kept)
        self._notify()

    def load(self, path: str | Path) -> None:
        """Add the subscriptions of a TOML file."""
        for topic, handler, options in read_subscription_file(path, SUBSCRIPTION_OPTION_NAMES):
            self.add(topic, handler, **options)

    def scan(self, package: str | ModuleType) -> None:
        """Import every module of a package: its decorators run, and functions marked with `subscribe` are added."""
        for module in import_modules(package):
            for topic, function, options in marked_handlers(module):
                if not any((each.topic, each.handler) == (topic, function) for each in self._declared):
                    self.add(topic, function, **options)

    def check(
        self,
        *,
        app: str,
        prefix: str | None = None,
        group_prefix: str | None = None,
        version: str = "v1",
        naming: FieldNaming | None = None,
        providers: Mapping[Any, Provider] | None = None,
    ) -> None:
        """Plan every handler and every group; raise `SubscriptionError` with all errors.

        `prefix` is put before the topics, `group_prefix` before the groups.
        """
        terms = _Terms(app, prefix, group_prefix, version, naming, dict(providers or {}))
        with self._lock:
            problems: list[str] = []
            named: list[EventSubscription] = []
            for topic, text, options in self._by_name:
                try:
                    named.append(new_subscription(topic, import_object(text), **options))
                except SubscriptionError as error:
                    problems.append(str(error))
            # Again for all: another naming or other providers change the plans.
            everything = [replace(each, checked=None) for each in (*self._declared, *named)]
            planned, groups = _planned(everything, terms, problems)
            self._declared, self._groups, self._terms, self._by_name = planned, groups, terms, []

    def groups(self) -> dict[str, GroupSubscriptions]:
        """Return the subscriptions by group name on the broker; empty before the check."""
        return {name: group.plan for name, group in self._groups.items()}

    def find(self, group: str, name: str) -> EventSubscription | None:
        """Return the subscription of a group for an event name, both as on the broker."""
        served = self._groups.get(group)
        return None if served is None else served.find(name)

    @property
    def subscriptions(self) -> tuple[EventSubscription, ...]:
        """All subscriptions, in the order of declaration."""
        return tuple(self._declared)

    def _change(self, subscriptions: list[EventSubscription]) -> None:
        if self._terms is None:
            self._declared = subscriptions
            return
        self._declared, self._groups = _planned(subscriptions, self._terms, [])

    def _notify(self) -> None:
        """Call the listeners outside the lock: they may use the registry from other threads."""
        if self._terms is not None:
            for tell in self.on_change:
                tell()


# -- the check -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Terms:
    app: str
    prefix: str | None
    group_prefix: str | None
    version: str
    naming: FieldNaming | None
    providers: Mapping[Any, Provider]


class _Group:
    """The subscriptions of a group, indexed for lookup."""

    def __init__(self, plan: GroupSubscriptions, by_topic: dict[str, EventSubscription]) -> None:
        self.plan = plan
        self._exact = {topic: each for topic, each in by_topic.items() if not is_pattern(topic)}
        self._patterns = [(topic, by_topic[topic]) for topic in sorted(by_topic, key=specificity) if is_pattern(topic)]
        self._found: dict[str, EventSubscription] = {}

    def find(self, name: str) -> EventSubscription | None:
        exact = self._exact.get(name)
        if exact is not None or not self._patterns:
            return exact
        found = self._found.get(name)
        if found is None:
            found = next((each for pattern, each in self._patterns if matches(pattern, name)), None)
            if found is not None:
                if len(self._found) >= _FOUND_NAMES_MAX:
                    self._found.clear()
                self._found[name] = found
        return found


def _planned(
    subscriptions: Sequence[EventSubscription], terms: _Terms, problems: list[str]
) -> tuple[list[EventSubscription], dict[str, _Group]]:
    by_group: dict[str, list[EventSubscription]] = {}
    planned: list[EventSubscription] = []
    for each in subscriptions:
        try:
            ready = each if each.checked else replace(each, checked=_plan(each, terms))
            group = broker_group_name(each.group, app=terms.app, prefix=terms.group_prefix, version=terms.version)
        except (SubscriptionError, IllegalName) as error:
            problems.append(str(error))
            continue
        planned.append(ready)
        by_group.setdefault(group, []).append(ready)
    groups = {name: _grouped(name, members, terms, problems) for name, members in by_group.items()}
    if problems:
        raise SubscriptionError("\n".join(problems))
    return planned, groups


def _plan(each: EventSubscription, terms: _Terms) -> CallPlan:
    made = plan_call(each.handler, naming=terms.naming, batch=each.batch is not None, providers=terms.providers)
    if each.executor == "process":
        if made.is_async or made.session_kind is not None or made.wants_cancel:
            raise SubscriptionError(
                f"{each} runs in another process: it must be a plain def, without a database handle or CancelToken"
            )
        if "<" in each.name:  # <locals>, <lambda>
            raise SubscriptionError(f"{each} runs in another process: it must be a function of a module")
    return made


def _grouped(name: str, members: Sequence[EventSubscription], terms: _Terms, problems: list[str]) -> _Group:
    by_topic: dict[str, EventSubscription] = {}
    concurrency: dict[int, EventSubscription] = {}
    for each in members:
        topic = broker_event_name(each.topic, terms.prefix)
        first = by_topic.setdefault(topic, each)
        if first is not each and not (first.allow_duplicates or each.allow_duplicates):
            problems.append(
                f"{first.name} and {each.name} both take {topic!r} in group {name!r}, and only one would get it: "
                "give one of them another group, or say allow_duplicates=True to have the first win"
            )
        if each.concurrency is not None:
            concurrency.setdefault(each.concurrency, each)
    if len(concurrency) > 1:
        values = ", ".join(f"{count} by {each.name}" for count, each in concurrency.items())
        problems.append(f"the concurrency of group {name!r} is {values}: it is the group's, so say it once")
    return _Group(
        GroupSubscriptions(name, tuple(sorted(by_topic)), next(iter(concurrency), None), tuple(members)), by_topic
    )
