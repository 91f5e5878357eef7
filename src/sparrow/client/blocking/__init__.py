"""The client for programs without an event loop: the asyncio client's names, on a loop thread of their own."""

from sparrow.client.blocking.admin import Admin
from sparrow.client.blocking.consumer import Consumer
from sparrow.client.blocking.pop_consumer import PopConsumer
from sparrow.client.blocking.producer import Producer

__all__ = ["Admin", "Consumer", "PopConsumer", "Producer"]
