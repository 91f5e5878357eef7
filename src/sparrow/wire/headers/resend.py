"""Messages delivered once more: a request of Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class ResendMessages(Header, frozen=True):
    """Which messages of a topic, said in one of three ways: by offsets, by keys, by time. Keys may be said together
    with a time."""

    topic: str
    group: str | None = msgspec.field(default=None, name="consumerGroup")
    """None: every group that has committed an offset on the topic."""
    queue_id: JavaInt | None = None
    priority: str | None = None
    """high, middle or low: the queues of that lane."""
    begin: JavaLong | None = None
    end: JavaLong | None = None
    """Queue offsets, both included."""
    keys: str | None = None
    """One or several, with spaces in between."""
    from_ms: JavaLong | None = msgspec.field(default=None, name="beginTimestamp")
    to_ms: JavaLong | None = msgspec.field(default=None, name="endTimestamp")
    """Store times; the second is not included."""
    is_dry_run: JavaBool = msgspec.field(default=False, name="dryRun")
    is_forced: JavaBool = msgspec.field(default=False, name="isForce")


class ResendMessagesResponse(Header, frozen=True):
    count: JavaLong
    missing: JavaLong
    groups: str = ""
    """With commas in between."""


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.RESEND_MESSAGES: ResendMessages}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.RESEND_MESSAGES: ResendMessagesResponse}
