"""Headers of a resend, which delivers messages again. A request of Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class ResendMessages(Header, frozen=True):
    """Selects messages of a topic by offsets, by keys or by time. Keys and time may be combined."""

    topic: str
    group: str | None = msgspec.field(default=None, name="consumerGroup")
    """None: all groups with a committed offset on the topic."""
    queue_id: JavaInt | None = None
    priority: str | None = None
    """high, middle or low: the queues of that lane."""
    begin: JavaLong | None = None
    end: JavaLong | None = None
    """Queue offsets, both included."""
    keys: str | None = None
    """Keys, separated by spaces."""
    from_ms: JavaLong | None = msgspec.field(default=None, name="beginTimestamp")
    to_ms: JavaLong | None = msgspec.field(default=None, name="endTimestamp")
    """Store times; the second is excluded."""
    is_dry_run: JavaBool = msgspec.field(default=False, name="dryRun")
    is_forced: JavaBool = msgspec.field(default=False, name="isForce")


class ResendMessagesResponse(Header, frozen=True):
    count: JavaLong
    missing: JavaLong
    groups: str = ""
    """Separated by commas."""


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.RESEND_MESSAGES: ResendMessages}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.RESEND_MESSAGES: ResendMessagesResponse}
