"""The bus in the frameworks people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow.bus.bus import EventBus


def install(bus: EventBus, app: Any) -> None:
    raise NotImplementedError
