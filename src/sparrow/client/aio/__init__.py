"""The client for asyncio. Clients may share a session: one set of connections for producers, consumers and admins."""

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.consume.pop_consumer import PopConsumer, PopReceipt
from sparrow.client.aio.health_server import HealthServer
from sparrow.client.aio.produce.producer import Producer

__all__ = ["Admin", "ClientSession", "Consumer", "HealthServer", "PopConsumer", "PopReceipt", "Producer"]
