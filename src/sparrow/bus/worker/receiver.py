"""The receiver: stores events from the broker in the database, then acknowledges them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.content_column import data_url_json, decode_content, encode_content, json_problem
from sparrow.bus.context import BusContext
from sparrow.bus.errors import NoSubscriber, Undecodable
from sparrow.bus.failures import error_text
from sparrow.bus.sql.connections.database import is_conflict, is_unreachable
from sparrow.bus.sql.inbox import ReceivedRow, store_received
from sparrow.bus.sql.tables import KEY_CHARS, MESSAGE_ID_CHARS, NAME_CHARS
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import FailedEvent
from sparrow.bus.transports.spi import BrokerDelivery, TransportConsumer

log = logging.getLogger(__name__)

BATCH_COUNT_MAX = 200
"""Deliveries stored in one transaction."""


class EventReceiver:
    """One consumer of one group."""

    def __init__(self, context: BusContext, group: str, names: Sequence[str]) -> None:
        self.group, self.names = group, tuple(names)
        self._context = context
        self._storing: asyncio.Task[None] | None = None
        self.has_joined = asyncio.Event()

    async def run(self) -> None:
        """Receive and store events until cancelled."""
        context = self._context
        await context.transport.open()
        listening = await context.transport.listen(self.group, self.names, prefetch=context.settings.broker_prefetch)
        self.has_joined.set()
        try:
            while True:
                deliveries = await listening.receive(BATCH_COUNT_MAX)
                # Finish a batch that has begun: after an interruption the broker would only deliver it again.
                self._storing = asyncio.create_task(self._take(listening, deliveries))
                await asyncio.shield(self._storing)
        finally:
            if self._storing is not None:
                await asyncio.gather(self._storing, return_exceptions=True)
            self.has_joined.clear()
            await listening.close()

    async def _take(self, listening: TransportConsumer, deliveries: Sequence[BrokerDelivery]) -> None:
        context = self._context
        arrivals = [self._readable(delivery) for delivery in deliveries]
        try:
            fresh = await self._store(arrivals)
        except Exception:
            await listening.release(deliveries)
            raise
        # Before the acknowledgement: the handlers can start while it is on its way.
        context.wake_executors()
        context.probe.count("bus_received_total", len(fresh))
        if len(fresh) < len(arrivals):
            context.probe.count("bus_duplicates_total", len(arrivals) - len(fresh))
        for arrival in fresh:
            if arrival.error is not None:
                log.warning(
                    "event %(event)s, message %(id)d of group %(group)s is Failed and parked: %(error)s; correct the"
                    " cause, then run `sparrow bus reexecute %(id)d`",
                    {"event": arrival.name, "id": arrival.id, "group": self.group, "error": arrival.error},
                )
                context.probe.changed("received", arrival.id, EventStatus.FAILED)
                context.probe.failed(_info(arrival, arrival.error))
        await listening.acknowledge(deliveries)

    async def _store(self, arrivals: list[ReceivedRow]) -> list[ReceivedRow]:
        try:
            return await self._store_some(arrivals)
        except Exception as error:
            if is_unreachable(error) or is_conflict(error):
                raise
        # The database refuses one of the messages. Find it and store it in another form: it must neither be delivered
        # forever nor delay the others.
        fresh: list[ReceivedRow] = []
        for arrival in arrivals:
            try:
                fresh += await self._store_some([arrival])
            except Exception as error:
                if is_unreachable(error) or is_conflict(error):
                    raise
                log.warning(
                    "event %(event)s of group %(group)s is stored in escaped form, because the database refused it:"
                    " %(error)s",
                    {"event": arrival.name, "group": self.group, "error": error},
                )
                fresh += await self._store_some([_storable(arrival, error)])
        return fresh

    async def _store_some(self, arrivals: list[ReceivedRow]) -> list[ReceivedRow]:
        context, settings = self._context, self._context.settings

        def work(db: Connection) -> list[ReceivedRow]:
            fresh = store_received(db, context.sql, arrivals, settings.version, settings.failed_retention_s)
            for arrival in fresh:  # reported before the commit: right after it, an executor may report the next state
                if arrival.error is None:
                    context.probe.changed("received", arrival.id, EventStatus.SCHEDULED)
            return fresh

        return await context.database.run(work)

    def _readable(self, delivery: BrokerDelivery) -> ReceivedRow:
        try:
            return self._arrival(delivery)
        except UnicodeEncodeError:  # a lone surrogate in a header: escape it so that it can be stored
            headers = {_whole(name): value and _whole(value) for name, value in delivery.headers.items()}
            return self._arrival(BrokerDelivery(name=_whole(delivery.name), headers=headers, body=delivery.body))

    def _arrival(self, delivery: BrokerDelivery) -> ReceivedRow:
        context = self._context
        headers = dict(delivery.headers)
        headers[h.GROUP] = self.group
        headers[h.INSTANCE] = context.host
        headers.pop(h.EXCEPTION, None)
        name = headers.get(h.NAME) or delivery.name
        subscription = context.registry.find(self.group, name)
        body, error = delivery.body, json_problem(delivery.body)
        if error is not None:
            error = error_text(Undecodable(error))
            body = data_url_json(body)
        elif subscription is None:
            error = error_text(NoSubscriber(name, self.group))
        elif len(name) > NAME_CHARS:
            error = error_text(Undecodable(f"its name has {len(name)} characters, {NAME_CHARS} fit"))
        if error is not None:
            headers[h.EXCEPTION] = error
        message_id = headers.get(h.ID) or ""
        key = headers.get(h.KEY) or headers.get(h.KAFKA_KEY)
        # CAP's Kafka key is the message id unless one was set: then there is no order to keep.
        keeps_order = subscription is not None and subscription.order_by == "key" and key and key != message_id
        dedupe = headers.get(h.DEDUP_KEY)
        dedupe_key: str | None = _fitting(f"d:{dedupe}" if dedupe else message_id, MESSAGE_ID_CHARS)
        if subscription is not None and not subscription.dedupe:
            dedupe_key = None
        return ReceivedRow(
            context.ids.next(),
            name[:NAME_CHARS],
            self.group,
            encode_content(headers, body),
            _fitting(message_id, MESSAGE_ID_CHARS),
            dedupe_key,
            _fitting(key, KEY_CHARS) if keeps_order and key else None,
            error,
        )


def _info(arrival: ReceivedRow, error: str) -> FailedEvent:
    headers, _ = decode_content(arrival.content)
    return FailedEvent("received", arrival.id, arrival.name, arrival.group, headers, arrival.content, error, 0, 0)


def _fitting(text: str, chars_max: int) -> str:
    """Return the text, or its hash if it is too long or ends in a blank, which MySQL ignores in comparisons."""
    fits = len(text) <= chars_max and not text.endswith(" ")
    return text if fits else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _whole(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _storable(arrival: ReceivedRow, error: Exception) -> ReceivedRow:
    return arrival._replace(
        name=ascii(arrival.name)[:NAME_CHARS],
        content=encode_content({}, data_url_json(arrival.content.encode(errors="surrogatepass"))),
        message_id=_fitting(ascii(arrival.message_id), MESSAGE_ID_CHARS),
        dedupe_key=None if arrival.dedupe_key is None else _fitting(ascii(arrival.dedupe_key), MESSAGE_ID_CHARS),
        order_key=None,
        error=f"the database refused it: {error_text(error)}",
    )
