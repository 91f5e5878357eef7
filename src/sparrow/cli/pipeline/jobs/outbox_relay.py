"""A relay of the event bus that runs in a Spark task and appends events in bulk.

It is a separate module because tasks import it, and need nothing of the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparrow.cli.bus.location import bus_extra_required, open_bus
from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_SHARDING_KEY

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import GroupBacklog
    from sparrow.bus.transports.spi import Envelope, TransportConsumer
    from sparrow.bus.worker.relay import EventRelay
    from sparrow.model.message import Message
    from sparrow.spark.jobs.outbox import BulkAppender, RelayCounts

_PAUSE_S = 0.1
"""Pause while other relays have claimed events: when they are done, the next events of the same keys can be claimed."""


@dataclass(frozen=True, kw_only=True)
class BulkRelay:
    """A relay of an event bus that appends in bulk. It holds values only, and connects in its task."""

    name_servers: str
    bus: str | None = None
    database: str | None = None
    schema: str = "cap"
    table_prefix: str = "cap"
    version: str | None = None
    form: str = "document"
    batch_size: int = 2_000
    client: dict[str, str] = field(default_factory=dict)

    def __call__(self, number: int) -> RelayCounts:
        return asyncio.run(self._send_all())

    def count_unsent_events(self) -> int:
        """Count the published events that are not sent, due or not."""
        return asyncio.run(self._count_unsent())

    async def _send_all(self) -> RelayCounts:
        from sparrow.bus.worker.relay import EventRelay
        from sparrow.spark.jobs.outbox import BulkAppender, RelayCounts

        async with open_bus(self.bus, self.database, self.schema, self.table_prefix) as bus:
            settings = replace(
                bus.settings,
                version=self.version or bus.settings.version,
                relay_batch=self.batch_size,
                send_timeout_s=bus.settings.lease_s / 2,
                # The column Queue also shows that a row is being sent; this saves one write per row.
                status_writes="compact",
            )
            bus.core.settings = settings
            bus.core.context.use(replace(bus.core.context.sql, writes_progress_states=False))
            retry_timeout_ms = int(settings.send_timeout_s * 1_000 / 2)
            appender = BulkAppender(
                self.name_servers, client=self.client, topic_queues=4, retry_timeout_ms=retry_timeout_ms
            )
            transport = BulkTransport(self.name_servers, appender, form=self.form, version=settings.version)
            bus.core.context.transport = transport
            relay = EventRelay(bus.core.context)
            try:
                await self._until_nothing_is_due(bus, relay)
            finally:
                await relay.stop(settings.send_timeout_s)
                await transport.close()
            totals = bus.core.context.probe.totals
            failed = totals['bus_retries_total{place="send"}'] + totals['bus_failed_total{side="published"}']
            return RelayCounts(totals["bus_sent_total"], failed)

    async def _until_nothing_is_due(self, bus: EventBus, relay: EventRelay) -> None:
        from sparrow.bus.worker.relay import BATCHES_IN_FLIGHT_MAX

        idle_rounds = 0
        while idle_rounds < 2:  # other relays may release events between the two checks
            for _ in range(BATCHES_IN_FLIGHT_MAX):
                if not await relay.step():
                    break
            await relay.drain()
            if await relay.step():
                idle_rounds = 0
            elif await self._is_more_to_come(bus):
                idle_rounds = 0
                await asyncio.sleep(_PAUSE_S)
            else:
                idle_rounds += 1

    async def _is_more_to_come(self, bus: EventBus) -> bool:
        """Return whether due events wait only for events of the same keys that other relays have claimed.

        Events that wait for the retry of a failed event are not included.
        """
        return any(each.due and each.held for each in await self._backlog(bus))

    async def _count_unsent(self) -> int:
        async with open_bus(self.bus, self.database, self.schema, self.table_prefix) as bus:
            return sum(each.open for each in await self._backlog(bus))

    async def _backlog(self, bus: EventBus) -> list[GroupBacklog]:
        from sparrow.bus.sql.outbox import outgoing_group
        from sparrow.bus.sql.statistics import backlog

        found = await bus.database.run(lambda db: backlog(db, bus.core.context.sql, "published"))
        group = outgoing_group(self.version or bus.settings.version)
        return [each for each in found if each.group == group]


class BulkTransport:
    """Transport of the event bus that appends batches of events as columns.

    A batch that is refused, or whose broker does not support bulk appends, is sent by the ordinary transport, which
    reports the result of each event.
    """

    def __init__(self, name_servers: str, appender: BulkAppender, *, form: str, version: str) -> None:
        with bus_extra_required():
            from sparrow.bus.transports.sparrow.transport import SparrowTransport

        self._form, self._version = form, version
        self._fallback = SparrowTransport(name_servers, form=form, version=version)  # type: ignore[arg-type]
        self._appender = appender

    def check_name(self, name: str) -> None:
        self._fallback.check_name(name)

    async def open(self) -> None:
        """Do nothing: connections are opened on first use."""

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        from sparrow.bus.transports.sparrow.message_format import to_message

        try:
            messages = [to_message(each, self._form, version=self._version) for each in envelopes]  # type: ignore[arg-type]
            await asyncio.to_thread(lambda: self._appender.append(_columns(messages)))
        except Refused:
            await self._fallback.open()
            return await self._fallback.send(envelopes)
        return [None] * len(envelopes)

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> TransportConsumer:
        raise Refused("the bulk transport can only send: use the ordinary transport to receive")

    async def close(self) -> None:
        await self._fallback.close()


def _columns(messages: Sequence[Message]) -> Any:
    import pyarrow as pa

    from sparrow.spark.jobs.outbox import PROPERTIES_TYPE

    properties = [message.properties for message in messages]
    rest = [
        [pair for pair in each.items() if pair[0] not in (PROPERTY_KEYS, PROPERTY_SHARDING_KEY)] for each in properties
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.topic for message in messages], pa.string()),
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([each.get(PROPERTY_KEYS) for each in properties], pa.string()),
            pa.array([each.get(PROPERTY_SHARDING_KEY) for each in properties], pa.string()),
            pa.array(rest, PROPERTIES_TYPE),
        ],
        names=["topic", "body", "keys", "sharding_key", "properties"],
    )
