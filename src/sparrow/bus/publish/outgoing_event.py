"""Outgoing events: their options, encoding to rows, and writing into a transaction.

Name, payload, headers and transaction are validated before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.content_column import encode_content
from sparrow.bus.codec.payload import FieldNaming, encode_payload, payload_type_name
from sparrow.bus.names import broker_event_name, checked_event_name
from sparrow.bus.publish.snowflake import SnowflakeGenerator
from sparrow.bus.publish.transaction_handle import TransactionHandle
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PublishedRow, insert_event, insert_events
from sparrow.bus.sql.tables import KEY_CHARS
from sparrow.model.errors import IllegalMessage, Unavailable

DELAY_MAX_S = 100 * 365 * 86_400.0
_ID_TRIES = 3


EventKey = str | int | UUID
"""The type of a key; it travels as text."""


class PublishOptions(TypedDict, total=False):
    """What an event may have besides its name and payload; the same for both kinds of bus and publisher."""

    key: EventKey | None
    """Events with the same key keep their order."""
    delay: timedelta | float | None
    """A timedelta, or seconds."""
    at: datetime | None
    """The time to send it, instead of a delay; with a time zone."""
    headers: Mapping[str, str | None] | None
    callback: str | None
    """The topic that receives the return value of the handler."""
    dedupe: str | None
    """A business key: a group handles two events with the same one once."""
    tenant: str | None


class OutgoingEvent(NamedTuple):
    """An event to publish with others: `bus.publish_many([OutgoingEvent("order.created", order, key="7"), ...])`."""

    name: str
    value: object = None
    key: EventKey | None = None
    delay: timedelta | float | None = None
    at: datetime | None = None
    headers: Mapping[str, str | None] | None = None
    callback: str | None = None
    dedupe: str | None = None
    tenant: str | None = None


class EventEncoder:
    """Encodes events as rows; it also validates names and assigns ids."""

    def __init__(
        self,
        ids: SnowflakeGenerator,
        *,
        topic_prefix: str | None,
        naming: FieldNaming | None,
        check_name: Callable[[str], None],
        now: Callable[[], datetime],
        trace_headers: Callable[[], Mapping[str, str]],
    ) -> None:
        self.ids = ids
        self._prefix, self._naming = topic_prefix, naming
        self._check_name, self._now, self._trace_headers = check_name, now, trace_headers
        self._checked: dict[str, str] = {}

    def encode(self, event: OutgoingEvent, number: int | None = None) -> PublishedRow:
        name = self._checked.get(event.name) or self._check(event.name)
        body = encode_payload(name, event.value, naming=self._naming)
        number = self.ids.next() if number is None else number
        now = self._now()
        delay_s = _delay_s(event, now)
        text = str(number)
        headers: dict[str, str | None] = dict(event.headers) if event.headers else {}
        given: Mapping[Any, Any] = headers  # callers may not be type-checked
        for key, value in given.items():
            if not (isinstance(key, str) and key) or not (value is None or isinstance(value, str)):
                raise IllegalMessage(
                    f"the header {key!r} of {name!r} is {value!r}: names and values of headers must be text"
                )
        headers[h.ID] = text
        headers[h.NAME] = name
        headers.setdefault(h.TYPE, payload_type_name(event.value))
        headers.setdefault(h.CORRELATION_ID, text)
        headers.setdefault(h.CORRELATION_SEQUENCE, "0")
        headers[h.CALLBACK] = event.callback
        if delay_s is None:
            headers[h.SENT_AT] = h.format_sent_at(now)
        else:
            headers[h.SENT_AT] = h.format_sent_at(now + timedelta(seconds=delay_s))
            headers[h.DELAY] = h.format_time_span(timedelta(seconds=delay_s))
        key_text = None
        if event.key is not None:
            key_text = _key_text(event.key, name)
            headers[h.KEY] = headers[h.KAFKA_KEY] = key_text
        if event.dedupe is not None:
            headers[h.DEDUP_KEY] = event.dedupe
        if event.tenant is not None:
            headers[h.TENANT] = event.tenant
        headers.update(self._trace_headers())
        try:
            content = encode_content(headers, body)
        except UnicodeEncodeError as error:
            raise IllegalMessage(f"the key or a header of {name!r} contains a lone surrogate: {error}") from error
        return PublishedRow(number, name, content, key_text, delay_s)

    def _check(self, name: str) -> str:
        wired = broker_event_name(checked_event_name(name), self._prefix)
        self._check_name(wired)
        if len(self._checked) < 10_000:  # bound the cache: names may come from user input
            self._checked[name] = wired
        return wired


def write_event(
    event_encoder: EventEncoder, handle: TransactionHandle, sql: SqlDialect, event: OutgoingEvent, version: str
) -> PublishedRow:
    """Write one event. If its id is taken, which is very unlikely, write it with another one."""
    for _ in range(_ID_TRIES):
        new = event_encoder.encode(event)
        if insert_event(handle.run, sql, new, version):
            return new
    raise Unavailable(f"{_ID_TRIES} new message ids in a row were taken: check the clock of this host")


def write_events(
    event_encoder: EventEncoder,
    handle: TransactionHandle,
    sql: SqlDialect,
    events: Sequence[OutgoingEvent],
    version: str,
) -> list[PublishedRow]:
    rows = [event_encoder.encode(event) for event in events]
    insert_events(handle.run, sql, rows, version)
    return rows


def _key_text(key: Any, name: str) -> str:
    """Return the key as text if every database can store it."""
    text = str(key) if isinstance(key, (str, int, UUID)) else ""
    if not 1 <= len(text) <= KEY_CHARS or "\0" in text:
        raise IllegalMessage(f"the key of {name!r} is {key!r}: use text of 1 to {KEY_CHARS} characters")
    return text


def _delay_s(event: OutgoingEvent, now: datetime) -> float | None:
    if event.delay is not None and event.at is not None:
        raise IllegalMessage("the event has both a delay and a time: pass one of them")
    if event.at is not None:
        if event.at.tzinfo is None:
            raise IllegalMessage(f"the time {event.at} has no time zone: use for example datetime.now(UTC)")
        seconds = max(0.0, (event.at.astimezone(UTC) - now).total_seconds())
    elif event.delay is None:
        return None
    else:
        seconds = event.delay.total_seconds() if isinstance(event.delay, timedelta) else float(event.delay)
    if not 0 <= seconds <= DELAY_MAX_S:
        raise IllegalMessage(f"a delay of {seconds} s is negative or longer than a hundred years")
    return seconds


def to_outgoing_event(event: OutgoingEvent | tuple[Any, ...]) -> OutgoingEvent:
    return event if isinstance(event, OutgoingEvent) else OutgoingEvent(*event)
