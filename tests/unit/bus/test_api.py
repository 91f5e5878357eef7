"""The blocking and the asyncio `EventBus`: the same names, one bus."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import sparrow.bus
from sparrow.bus import EventBus, aio
from sparrow.model.errors import Refused

PUBLIC_METHODS_MAX = 25


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and name not in ("core", "of_core")}


def test_both_flavours_have_the_same_names_and_arguments() -> None:
    assert public(EventBus) == public(aio.EventBus)
    for name in ("publish_many", "request", "drain", "start", "stop", "prepare"):
        blocking = inspect.signature(getattr(EventBus, name)).parameters
        awaited = inspect.signature(getattr(aio.EventBus, name)).parameters
        assert set(awaited) <= set(blocking), name
        assert inspect.iscoroutinefunction(getattr(aio.EventBus, name)), name


def test_the_number_of_public_methods_is_limited() -> None:
    assert len(public(EventBus)) <= PUBLIC_METHODS_MAX


def test_both_flavours_share_one_bus(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db", "memory://")
    assert bus.blocking is bus
    assert bus.aio is bus.aio
    assert bus.aio.blocking is bus
    assert bus.aio.subscriptions is bus.subscriptions
    assert bus.aio.publisher is bus.aio.publisher


def test_old_names_warn_and_still_work(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db", "memory://")
    with pytest.warns(DeprecationWarning, match=r"use bus\.subscriptions"):
        assert bus.registry is bus.subscriptions  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"use bus\.aio\.publish"):
        assert bus.publish_async == bus.aio.publish  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="EventStatus"):
        assert sparrow.bus.Status is sparrow.bus.EventStatus
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bus.nonsense  # type: ignore[attr-defined]  # noqa: B018


async def test_a_blocking_start_inside_an_event_loop_names_the_asyncio_flavour(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db", "memory://")
    with pytest.raises(Refused, match=r"sparrow\.bus\.aio\.EventBus"):
        bus.start()
