"""Event headers with the names of .NET CAP, so that services of both kinds can share a broker.

Every value is text or None. CAP always writes the callback header, often with null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

ID = "cap-msg-id"
NAME = "cap-msg-name"
GROUP = "cap-msg-group"
TYPE = "cap-msg-type"
CORRELATION_ID = "cap-corr-id"
CORRELATION_SEQUENCE = "cap-corr-seq"
CALLBACK = "cap-callback-name"
SENT_AT = "cap-senttime"
DELAY = "cap-delaytime"
INSTANCE = "cap-exec-instance-id"
EXCEPTION = "cap-exception"
KAFKA_KEY = "cap-kafka-key"
TRACE_PARENT = "traceparent"
KEY = "sp-key"
TENANT = "sp-tenant"
ERROR = "sp-error"
"""On a dead letter: the error."""
DEDUP_KEY = "sp-dedupe"
"""A business key: a group handles two events with the same one once."""

_SENT_AT_FORMAT = "%m/%d/%Y %H:%M:%S"
_TIME_SPAN = re.compile(
    r"(?P<minus>-)?(?:(?P<days>\d+)\.)?(?P<h>\d{1,2}):(?P<m>\d{2}):(?P<s>\d{2})(?:\.(?P<f>\d{1,7}))?"
)


class Headers(dict[str, str | None]):
    """The headers of an event, and the headers and topic of its reply.

    ```python
    @bus.subscribe("order.created")
    def on_order(order: dict, headers: Headers) -> dict:
        headers.add_response_header("region", "north")
        return {"accepted": True}
    ```
    """

    def __init__(self, values: Mapping[str, str | None] = {}, /) -> None:
        super().__init__(values)
        self.response: dict[str, str | None] = {}
        """Headers of the reply, besides those for correlation."""
        self.reply_to: str | None = self.get(CALLBACK) or None
        """The topic that receives the handler's return value; None: no reply."""

    @property
    def id(self) -> str:
        """The id of the message; duplicates have the same one."""
        return self.get(ID) or ""

    @property
    def name(self) -> str:
        """The event name on the broker."""
        return self.get(NAME) or ""

    @property
    def group(self) -> str | None:
        """The consumer group, as on the broker."""
        return self.get(GROUP)

    @property
    def correlation_id(self) -> str:
        """The id of the message that began the conversation."""
        return self.get(CORRELATION_ID) or self.id

    @property
    def correlation_sequence(self) -> int:
        """The position in the conversation; 0 for its first message."""
        text = self.get(CORRELATION_SEQUENCE) or "0"
        return int(text) if text.isdecimal() and len(text) < 20 else 0

    @property
    def key(self) -> str | None:
        """The key whose order is kept."""
        return self.get(KEY) or self.get(KAFKA_KEY) or None

    @property
    def tenant(self) -> str | None:
        """The tenant."""
        return self.get(TENANT)

    @property
    def sent_at(self) -> datetime | None:
        """When the event was sent, as far as its sender says."""
        text = self.get(SENT_AT)
        return None if not text else parse_sent_at(text)

    def add_response_header(self, name: str, value: str | None) -> None:
        """Add a header to the reply."""
        self.response[name] = value

    def rewrite_callback(self, topic: str) -> None:
        """Send the reply to another topic than the requested one."""
        self.reply_to = topic

    def remove_callback(self) -> None:
        """Send no reply."""
        self.reply_to = None


def format_sent_at(moment: datetime) -> str:
    """Format a time as CAP does, in UTC. The format has no time zone; .NET senders write local time."""
    return _format_second(moment.replace(microsecond=0))


@lru_cache(64)
def _format_second(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_SENT_AT_FORMAT)


def parse_sent_at(text: str) -> datetime | None:
    """Parse CAP's format or ISO 8601; return None for anything else, since nothing depends on it."""
    try:
        return datetime.strptime(text, _SENT_AT_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def format_time_span(span: timedelta) -> str:
    """Format a duration as .NET's TimeSpan: `[d.]hh:mm:ss[.fffffff]`."""
    minus = "-" if span < timedelta(0) else ""
    span = abs(span)
    hours, rest = divmod(span.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    days = f"{span.days}." if span.days else ""
    fraction = f".{span.microseconds * 10:07d}" if span.microseconds else ""
    return f"{minus}{days}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


def parse_time_span(text: str) -> timedelta | None:
    found = _TIME_SPAN.fullmatch(text)
    if found is None:
        return None
    try:
        span = timedelta(
            days=int(found["days"] or 0),
            hours=int(found["h"]),
            minutes=int(found["m"]),
            seconds=int(found["s"]),
            microseconds=int((found["f"] or "0").ljust(7, "0")) // 10,
        )
    except (OverflowError, ValueError):
        return None
    return -span if found["minus"] else span
