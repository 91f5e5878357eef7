"""The headers of an event, named as .NET CAP names them, so that both kinds of service can share a broker.

Every value is text. A header may be there without a value: CAP always writes a callback name, often null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

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
"""Of a dead letter: why it is one."""
DEDUP_KEY = "sp-dedupe"
"""A business key: two events with the same one are handled once by a group."""

_SENT_AT_FORMAT = "%m/%d/%Y %H:%M:%S"
_TIME_SPAN = re.compile(
    r"(?P<minus>-)?(?:(?P<days>\d+)\.)?(?P<h>\d{1,2}):(?P<m>\d{2}):(?P<s>\d{2})(?:\.(?P<f>\d{1,7}))?"
)


class Headers(dict[str, str | None]):
    """What a handler sees of an event besides its payload, and what it says about the answer.

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
        """What the answer carries besides the correlation headers."""
        self.reply_to: str | None = self.get(CALLBACK) or None
        """The topic the handler's return value goes to; None: nowhere."""

    @property
    def id(self) -> str:
        return self.get(ID) or ""

    @property
    def name(self) -> str:
        return self.get(NAME) or ""

    @property
    def group(self) -> str | None:
        return self.get(GROUP)

    @property
    def correlation_id(self) -> str:
        return self.get(CORRELATION_ID) or self.id

    @property
    def correlation_sequence(self) -> int:
        text = self.get(CORRELATION_SEQUENCE) or "0"
        return int(text) if text.isdecimal() and len(text) < 20 else 0

    @property
    def key(self) -> str | None:
        return self.get(KEY) or self.get(KAFKA_KEY) or None

    @property
    def tenant(self) -> str | None:
        return self.get(TENANT)

    @property
    def sent_at(self) -> datetime | None:
        text = self.get(SENT_AT)
        return None if not text else parse_sent_at(text)

    def add_response_header(self, name: str, value: str | None) -> None:
        """Put a header on the answer."""
        self.response[name] = value

    def rewrite_callback(self, topic: str) -> None:
        """Send the answer to another topic than the one asked for."""
        self.reply_to = topic

    def remove_callback(self) -> None:
        """Send no answer."""
        self.reply_to = None


def format_sent_at(moment: datetime) -> str:
    """CAP's form, in UTC. It is neither ISO nor does it name a zone; .NET senders write their local time."""
    return moment.astimezone(UTC).strftime(_SENT_AT_FORMAT)


def parse_sent_at(text: str) -> datetime | None:
    """CAP's form or ISO; None when it is neither, since nothing depends on it."""
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
    """.NET's TimeSpan: `[d.]hh:mm:ss[.fffffff]`."""
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
