"""The client for asyncio. A session may be shared: one set of connections for a producer, a consumer and an admin."""

from sparrow.client.aio.admin import Admin
from sparrow.client.aio.consumer import Consumer
from sparrow.client.aio.popping import PopConsumer, Receipt
from sparrow.client.aio.producer import Producer
from sparrow.client.aio.session import Session

__all__ = ["Admin", "Consumer", "PopConsumer", "Producer", "Receipt", "Session"]
