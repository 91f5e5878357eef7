"""Context of a task that writes a partition: identity of the write, options, client, brokers and routes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol

from sparrow import clock
from sparrow.client.topic_route import TopicRoute
from sparrow.spark.client_pool import PooledClient
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.spark.sink.commit_messages import StagedRows, WriteId
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.spark.sink.options import DeliveryGuarantee, SinkOptions
from sparrow.spark.sink.record_encoder import RowIds
from sparrow.wire.message_ids import UniqueIdGenerator


class PartitionWriter(Protocol):
    """Delivers the rows of one partition."""

    def __init__(self, work: WriteContext) -> None: ...
    def add(self, rows: MessageRows) -> None:
        """Write rows. Returns while they are still in flight."""
        ...

    def finish(self) -> tuple[StagedRows, ...]:
        """Wait until all rows are delivered, and return the stages."""
        ...

    def abandon(self) -> None:
        """Clean up after a failure of the task."""
        ...


class TaskRoutes:
    """The routes of one task, fetched once, so that all its rows use the same queues."""

    def __init__(self, client: PooledClient, find: Callable[[str], Coroutine[Any, Any, TopicRoute]]) -> None:
        self._client, self._find = client, find
        self._known: dict[str, TopicRoute] = {}

    def __getitem__(self, topic: str) -> TopicRoute:
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._client.run(self._find(topic))
        return found

    def brokers(self) -> tuple[tuple[str, str], ...]:
        """Return each broker that rows may have gone to, with a topic whose route contains it."""
        found = {queue.broker_name: topic for topic, route in self._known.items() for queue in route.write_queues}
        return tuple(sorted(found.items()))


class WriteTask(NamedTuple):
    """The partition of a write that one task handles."""

    write_id: WriteId
    partition: int
    can_create_topics: bool
    """False if the topic existed before: its broker may be unavailable, and rows must not go to another one."""


def _route_finder(
    task: WriteTask, options: SinkOptions, brokers: SinkBrokers
) -> Callable[[str], Coroutine[Any, Any, TopicRoute]]:
    """Return the function by which a task finds the route of a topic."""
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return partial(brokers.route, may_be_new=True)  # a send creates a topic that does not exist
    return brokers.ensure_route if task.can_create_topics else brokers.existing_route


class WriteContext(NamedTuple):
    """What a partition writer needs."""

    task: WriteTask
    topic: str | None
    """The topic of all rows, if the option is set."""
    options: SinkOptions
    client: PooledClient
    brokers: SinkBrokers
    routes: TaskRoutes
    ids: RowIds

    @classmethod
    def open(cls, task: WriteTask, topic: str | None, options: SinkOptions, client: PooledClient) -> WriteContext:
        """Create the context of a task."""
        brokers = SinkBrokers(
            client.session, retry_timeout_ms=options.commit_timeout_ms, topic_queues=options.topic_queues
        )
        routes = TaskRoutes(client, _route_finder(task, options, brokers))
        own_ip = ip_address(client.session.client_id.partition("@")[0]).packed
        ids = RowIds(UniqueIdGenerator(own_ip, os.getpid(), secrets.randbits(32), clock.now_ms))
        return cls(task, topic, options, client, brokers, routes, ids)
