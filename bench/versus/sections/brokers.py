"""Sparrow and other brokers from Python, each with the flush of the other: NATS JetStream, Redis Streams, RabbitMQ."""

from __future__ import annotations

from bench.versus.clients.nats import NatsClient
from bench.versus.clients.rabbitmq import QuorumClient, RabbitClient, StreamClient
from bench.versus.clients.redis import RedisClient
from bench.versus.clients.sparrow import SparrowClient
from bench.versus.peers.nats import Nats
from bench.versus.peers.peer import Flush
from bench.versus.peers.rabbitmq import RabbitMQ
from bench.versus.peers.redis import Redis
from bench.versus.peers.sparrow import Sparrow
from bench.versus.run import Run
from bench.versus.sections.python_clients import measure_clients

NATS_DIVISOR, REDIS_DIVISOR, RABBITMQ_DIVISOR = 8, 2, 20
"""Their Python clients handle so many times fewer messages a second than those of Kafka, roughly."""


def compare_nats(run: Run) -> None:
    _compare(run, Nats, NatsClient, divisor=NATS_DIVISOR)


def compare_redis(run: Run) -> None:
    _compare(run, Redis, RedisClient, divisor=REDIS_DIVISOR)


def compare_rabbitmq(run: Run) -> None:
    _compare(run, RabbitMQ, StreamClient, divisor=RABBITMQ_DIVISOR)
    _compare(run, RabbitMQ, QuorumClient, divisor=RABBITMQ_DIVISOR, flush="sync")


def _compare(
    run: Run,
    kind: type[Nats] | type[Redis] | type[RabbitMQ],
    client: type[NatsClient] | type[RedisClient] | type[RabbitClient],
    *,
    divisor: int,
    flush: Flush = "async",
) -> None:
    with run.started(Sparrow(flush), kind(flush)) as peers:
        clients = [SparrowClient(peer) if isinstance(peer, Sparrow) else client(peer) for peer in peers]
        measure_clients(run, client.name, clients, divisor=divisor)
