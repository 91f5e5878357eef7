"""The blocking client: the asyncio client's names, run on an event loop in a thread of its own."""

from sparrow.client.blocking.admin import Admin
from sparrow.client.blocking.consumer import Consumer
from sparrow.client.blocking.health_server import HealthServer
from sparrow.client.blocking.pop_consumer import PopConsumer
from sparrow.client.blocking.producer import Producer

__all__ = ["Admin", "Consumer", "HealthServer", "PopConsumer", "Producer"]
