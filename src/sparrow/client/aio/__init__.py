"""The client for asyncio. A session may be shared: one set of connections for a producer, a consumer and an admin."""

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.consume.pop_consumer import PopConsumer, PopReceipt
from sparrow.client.aio.produce.producer import Producer

__all__ = ["Admin", "ClientSession", "Consumer", "PopConsumer", "PopReceipt", "Producer"]
