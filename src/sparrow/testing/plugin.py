"""The pytest plugin, which is installed with Sparrow: three fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparrow.testing.platform import RunningPlatform, run_platform

if TYPE_CHECKING:  # only `event_bus` needs SQLAlchemy
    from sparrow.bus import EventBus


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    """Provide a name server and a broker for one test."""
    with run_platform(tmp_path / "sparrow") as platform:
        yield platform


@pytest.fixture(scope="session")
def sparrow_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """Provide a name server and a broker for the whole run; tests must use different topics and groups."""
    with run_platform(tmp_path_factory.mktemp("sparrow")) as platform:
        yield platform


@pytest.fixture
def event_bus(tmp_path: Path) -> Iterator[EventBus]:
    """Provide an event bus for one test, on SQLite and an in-memory broker, with its tables.

    `with event_bus:` or `async with event_bus.aio:` starts it.
    """
    from sparrow.bus import EventBus

    bus = EventBus(f"sqlite:///{tmp_path / 'event-bus.db'}", "memory://", app="test")
    bus.prepare()
    yield bus
    bus.stop()
