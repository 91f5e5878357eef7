"""Where a peer listens, as people and route tables write it: `10.0.0.1:9876`, `[::1]:9876`, `example:9876`."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import NamedTuple

from sparrow.model.errors import SettingsError
from sparrow.model.message import Host


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
            raise SettingsError("address", text, "the caller", "host:port, such as 127.0.0.1:9876,")
        return cls(host.strip("[]"), int(port))

    def as_host(self) -> Host:
        """What records and message ids keep of it: bytes, so a name is looked up first."""
        try:
            ip = ip_address(self.host)
        except ValueError:
            ip = ip_address(socket.gethostbyname(self.host))
        return Host(ip.packed, self.port)


def parse_addresses(text: str) -> list[Address]:
    """Several addresses, parted by semicolons as RocketMQ does, or by commas."""
    return [Address.parse(part) for part in text.replace(",", ";").split(";") if part.strip()]
