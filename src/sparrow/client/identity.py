"""Who a client is: the address it is seen from, its id in groups and locks, and the ids it gives its messages."""

from __future__ import annotations

import os
import socket
import time
from ipaddress import ip_address

from sparrow import clock
from sparrow.net.address import Address
from sparrow.wire.message_ids import UniqueIdGenerator


def local_ip(towards: Address) -> str:
    """The address this machine has on the way to a peer. Nothing is sent."""
    try:
        family = socket.AF_INET6 if ":" in towards.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((towards.host, towards.port or 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def make_client_id(ip: str, instance: str | None = None) -> str:
    """`ip@instance`; without a name for the instance, one that no other client has."""
    return f"{ip}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"


def make_unique_ids(ip: str) -> UniqueIdGenerator:
    return UniqueIdGenerator(ip_address(ip).packed, os.getpid(), time.monotonic_ns(), clock.now_ms)
