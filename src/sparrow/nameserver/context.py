"""What the handlers of one name server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sparrow import clock
from sparrow.nameserver.kv import Kv
from sparrow.nameserver.routes import Routes
from sparrow.net.address import Address
from sparrow.settings import NamingSettings


@dataclass(kw_only=True)
class Naming:
    """One name server, without its sockets."""

    settings: NamingSettings
    address: Address
    routes: Routes = field(default_factory=Routes)
    kv: Kv = field(default_factory=Kv)
    now_ms: Callable[[], int] = clock.now_ms
    has_ordered_routes: bool = False
    """Whether routes tell the order that the KV configuration gives a topic. RocketMQ's `orderMessageEnable`."""
    registering: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One registration at a time, or a small one could overtake the large one before it."""
