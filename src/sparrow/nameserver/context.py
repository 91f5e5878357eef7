"""The state that the handlers of one name server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sparrow import clock
from sparrow.nameserver.kv import KvConfig
from sparrow.nameserver.routes import RouteTable
from sparrow.net.address import Address
from sparrow.settings import NameServerSettings


@dataclass(kw_only=True)
class NameServerContext:
    """The state of one name server, without its sockets."""

    settings: NameServerSettings
    address: Address
    routes: RouteTable = field(default_factory=RouteTable)
    kv: KvConfig = field(default_factory=KvConfig)
    monotonic_ms: Callable[[], int] = clock.monotonic_ms
    """The clock of the silence of brokers; nobody sets it."""
    is_order_message_enabled: bool = False
    """Whether routes include the order configuration of ordered topics (RocketMQ's `orderMessageEnable`)."""
    registration_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes registrations: a small one must not overtake a large one that is still being decoded."""
