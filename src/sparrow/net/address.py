"""Addresses of peers, as people and routes write them: `10.0.0.1:9876`, `[::1]:9876`, `example:9876`."""

from __future__ import annotations

import socket
from asyncio import BaseTransport
from ipaddress import ip_address
from typing import NamedTuple

from sparrow.model.errors import SettingsError
from sparrow.model.message import Host
from sparrow.wire.record import pack_host


class Address(NamedTuple):
    """A host name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`; raise `SettingsError` if the text is something else."""
        scheme, separator, rest = text.rpartition("://")
        if separator:
            raise SettingsError("address", text, "the caller", f"{rest.strip('/') or 'host:port'}, without {scheme}://")
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
            raise SettingsError("address", text, "the caller", "host:port, such as 127.0.0.1:9876,")
        return cls(host.strip("[]"), int(port))

    def as_host(self) -> Host:
        """Return the address in the binary form of records and message ids; a host name is resolved."""
        try:
            ip = ip_address(self.host)
        except ValueError:
            ip = ip_address(socket.gethostbyname(self.host))
        return Host(ip.packed, self.port)


def parse_addresses(text: str) -> list[Address]:
    """Parse addresses separated by semicolons, as RocketMQ does, or by commas."""
    return [Address.parse(part) for part in text.replace(",", ";").split(";") if part.strip()]


def peer_of(transport: BaseTransport) -> tuple[str, bytes]:
    """Return the address of the peer, as text and in the binary form of records."""
    name = transport.get_extra_info("peername")
    if not name:
        return "unconnected", pack_host(Host())
    address = Address(name[0], name[1])
    return str(address), pack_host(address.as_host())
