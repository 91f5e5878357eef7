"""The name server: routes that brokers register and that vanish when a broker falls silent."""

from sparrow.naming.routes import Routes
from sparrow.naming.server import NameServer

__all__ = ["NameServer", "Routes"]
