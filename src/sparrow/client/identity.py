"""The identity of a client: its IP address, its client id, and the unique ids of its messages."""

from __future__ import annotations

import os
import socket
import time
from ipaddress import ip_address

from sparrow import clock
from sparrow.net.address import Address
from sparrow.wire.message_ids import UniqueIdGenerator


def local_ip(peer: Address) -> str:
    """Return the IP address of this machine on the way to a peer. Nothing is sent."""
    try:
        family = socket.AF_INET6 if ":" in peer.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer.host, peer.port or 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def make_client_id(ip: str, instance_name: str | None = None) -> str:
    """Return `ip@instance_name`; without an instance name, one that is unique."""
    return f"{ip}@{instance_name or f'{os.getpid()}#{time.monotonic_ns()}'}"


def make_unique_ids(ip: str) -> UniqueIdGenerator:
    """Return a generator of message ids for this process."""
    return UniqueIdGenerator(ip_address(ip).packed, os.getpid(), time.monotonic_ns(), clock.now_ms)
