"""The name server: brokers register their topics with it, and clients ask it for routes."""

from sparrow.nameserver.routes import RouteTable
from sparrow.nameserver.server import NameServer

__all__ = ["NameServer", "RouteTable"]
