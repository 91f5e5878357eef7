"""The name server: routes that brokers register and that vanish when a broker falls silent."""

from sparrow.nameserver.routes import RouteTable
from sparrow.nameserver.server import NameServer

__all__ = ["NameServer", "RouteTable"]
