"""Transports from broker URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from sparrow.bus.errors import ClientMissing
from sparrow.bus.transports.spi import Transport
from sparrow.model.errors import SettingsError
from sparrow.model.urls import hide_password

KNOWN_URLS = "sparrow://127.0.0.1:9876, rocketmq://…, memory://, amqp://…, kafka://…, redis://… or nats://…"


def transport_from_url(url: str, *, version: str = "v1") -> Transport:
    """Return the transport for a URL; it is not connected yet.

    Each broker's client is an extra: `pip install 'sparrowmq[rabbitmq]'`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        suggestion = f"sparrow://{hide_password(url)}, or {KNOWN_URLS}"
        raise SettingsError("broker", url, "the bus", suggestion, "it is not a URL of a broker")
    try:
        return _made(scheme, url, rest, version)
    except ModuleNotFoundError as error:
        extra = {"amqp": "rabbitmq", "amqps": "rabbitmq", "rediss": "redis", "unix": "redis", "tls": "nats"}.get(
            scheme, scheme
        )
        raise ClientMissing("broker", hide_password(url), error.name or extra, f"sparrowmq[{extra}]") from error


def _made(scheme: str, url: str, rest: str, version: str) -> Transport:
    if scheme in ("sparrow", "rocketmq"):
        from sparrow.bus.transports.sparrow.transport import SparrowTransport

        return SparrowTransport(rest or None, version=version)
    if scheme == "memory":
        from sparrow.bus.transports.memory import MemoryTransport

        return MemoryTransport.at(rest)
    if scheme in ("amqp", "amqps"):
        from sparrow.bus.transports.rabbitmq.transport import RabbitTransport

        return RabbitTransport(url, version=version)
    if scheme == "kafka":
        from sparrow.bus.transports.kafka.transport import KafkaTransport

        return KafkaTransport(urlsplit(url).netloc)
    if scheme in ("redis", "rediss", "unix"):
        from sparrow.bus.transports.redis.transport import RedisTransport

        return RedisTransport(url)
    if scheme in ("nats", "tls"):
        from sparrow.bus.transports.nats.transport import NatsTransport

        return NatsTransport(url)
    raise SettingsError("broker", url, "the bus", KNOWN_URLS)
