"""Names that `EventBus` had in earlier versions; each warns, and is removed in the next version."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

_RENAMED: dict[str, tuple[str, Callable[[AnyEventBus], Any]]] = {
    "publish_async": ("bus.aio.publish", lambda bus: bus.aio.publish),
    "publish_many_async": ("bus.aio.publish_many", lambda bus: bus.aio.publish_many),
    "start_in_thread": ("bus.blocking.start", lambda bus: bus.blocking.start),
    "stop_thread": ("bus.blocking.stop", lambda bus: bus.blocking.stop),
    "prepare_blocking": ("bus.blocking.prepare", lambda bus: bus.blocking.prepare),
    "drain_blocking": ("bus.blocking.drain", lambda bus: bus.blocking.drain),
    "blocking_operations": ("bus.blocking.operations", lambda bus: bus.blocking.operations),
    "cancel": ("bus.operations.cancel", lambda bus: bus.blocking.operations.cancel),
    "cancel_async": ("bus.aio.operations.cancel", lambda bus: bus.aio.operations.cancel),
    "add_subscription": ("bus.subscriptions.add", lambda bus: bus.subscriptions.add),
    "remove_subscription": ("bus.subscriptions.remove", lambda bus: bus.subscriptions.remove),
    "check": ("`sparrow bus check`, or start the bus, which checks its handlers", lambda bus: bus.core.check),
    "registry": ("bus.subscriptions", lambda bus: bus.subscriptions),
}


def find_renamed(bus: AnyEventBus, name: str) -> Any:
    """Return what `bus.<name>` was, with a warning; `AttributeError` if there never was such a name."""
    if name not in _RENAMED:
        raise AttributeError(f"{type(bus).__name__!r} object has no attribute {name!r}")
    replacement, find = _RENAMED[name]
    warnings.warn(f"bus.{name} is deprecated: use {replacement}", DeprecationWarning, stacklevel=3)
    return find(bus)
