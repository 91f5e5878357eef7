"""A relay of the event bus for a task of Spark: the bus's own, with a transport that appends in bulk.

It stands apart from the command that uses it, since tasks import it and need nothing of a command line.
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
    from sparrow.bus.relay.relay import EventRelay
    from sparrow.bus.transports.spi import Envelope, TransportConsumer
    from sparrow.model.message import Message
    from sparrow.spark.jobs.outbox import BulkAppender, RelayCounts

_PAUSE_S = 0.1
"""While what is left is in other hands: when they are done, the next events of the same keys can be had."""


@dataclass(frozen=True, kw_only=True)
class BulkRelay:
    """A relay on somebody's tables that appends in bulk. Holds values only: it connects in the task that it goes to."""

    name_servers: str
    bus: str | None = None
    database: str | None = None
    schema: str = "cap"
    table_prefix: str = "cap"
    version: str | None = None
    form: str = "document"
    lot: int = 2_000
    client: dict[str, str] = field(default_factory=dict)

    def __call__(self, number: int) -> RelayCounts:
        return asyncio.run(self._send_all())

    def count_unsent_events(self) -> int:
        """Published and not sent, whether due or not."""
        return asyncio.run(self._open_events())

    async def _send_all(self) -> RelayCounts:
        from sparrow.bus.relay.relay import EventRelay
        from sparrow.spark.jobs.outbox import BulkAppender, RelayCounts

        async with open_bus(self.bus, self.database, self.schema, self.table_prefix) as bus:
            settings = replace(
                bus.settings,
                version=self.version or bus.settings.version,
                relay_batch=self.lot,
                send_timeout_s=bus.settings.lease_s / 2,
                # That a row is being sent, Queue says as well: one write less for every row.
                status_writes="compact",
            )
            bus.core.settings = settings
            bus.core.context.use(replace(bus.core.context.sql, writes_progress_states=False))
            patience_ms = int(settings.send_timeout_s * 1_000 / 2)
            appender = BulkAppender(self.name_servers, client=self.client, topic_queues=4, patience_ms=patience_ms)
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
        from sparrow.bus.relay.relay import BATCHES_IN_FLIGHT_MAX

        in_vain = 0
        while in_vain < 2:  # what others had in hand at the first look may have come free before it was asked for
            for _ in range(BATCHES_IN_FLIGHT_MAX):
                if not await relay.step():
                    break
            await relay.drain()
            if await relay.step():
                in_vain = 0
            elif await self._is_more_to_come(bus):
                in_vain = 0
                await asyncio.sleep(_PAUSE_S)
            else:
                in_vain += 1

    async def _is_more_to_come(self, bus: EventBus) -> bool:
        """Whether events wait that could be had, were not others of their keys in other hands.

        Those behind one that failed and is tried again later are not worth waiting for.
        """
        return any(each.due and each.held for each in await self._backlog(bus))

    async def _open_events(self) -> int:
        async with open_bus(self.bus, self.database, self.schema, self.table_prefix) as bus:
            return sum(each.open for each in await self._backlog(bus))

    async def _backlog(self, bus: EventBus) -> list[GroupBacklog]:
        from sparrow.bus.sql.outbox import outgoing_group
        from sparrow.bus.sql.statistics import backlog

        found = await bus.database.run(lambda db: backlog(db, bus.core.context.sql, "published"))
        lane = outgoing_group(self.version or bus.settings.version)
        return [each for each in found if each.group == lane]


class BulkTransport:
    """Events as the bus's own transport writes them, but appended as columns, a lot at a time.

    A lot in which something is refused, or whose broker cannot append in bulk, is sent by that transport, which says of
    each event what became of it.
    """

    def __init__(self, name_servers: str, appender: BulkAppender, *, form: str, version: str) -> None:
        with bus_extra_required():
            from sparrow.bus.transports.sparrow.transport import SparrowTransport

        self._form, self._version = form, version
        self._one_by_one = SparrowTransport(name_servers, form=form, version=version)  # type: ignore[arg-type]
        self._appender = appender

    def check_name(self, name: str) -> None:
        self._one_by_one.check_name(name)

    async def open(self) -> None:
        """Connections come with the first use."""

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        from sparrow.bus.transports.sparrow.message_format import to_message

        try:
            messages = [to_message(each, self._form, version=self._version) for each in envelopes]  # type: ignore[arg-type]
            await asyncio.to_thread(lambda: self._appender.append(_columns(messages)))
        except Refused:
            await self._one_by_one.open()
            return await self._one_by_one.send(envelopes)
        return [None] * len(envelopes)

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> TransportConsumer:
        raise Refused("this only sends")

    async def close(self) -> None:
        await self._one_by_one.close()


def _columns(messages: Sequence[Message]) -> Any:
    import pyarrow as pa

    from sparrow.spark.jobs.outbox import PROPERTIES_TYPE

    said = [message.properties for message in messages]
    rest = [[pair for pair in each.items() if pair[0] not in (PROPERTY_KEYS, PROPERTY_SHARDING_KEY)] for each in said]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.topic for message in messages], pa.string()),
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([each.get(PROPERTY_KEYS) for each in said], pa.string()),
            pa.array([each.get(PROPERTY_SHARDING_KEY) for each in said], pa.string()),
            pa.array(rest, PROPERTIES_TYPE),
        ],
        names=["topic", "body", "keys", "sharding_key", "properties"],
    )
